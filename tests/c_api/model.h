// The small model of the engine's tests, through the C interface.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "c_api/c_calls.h"
#include "engine/engine_workers.h"

namespace gradpress::test {

inline std::string model_json() {
  Json list = Json::array();
  for (const EngineTensor& tensor : small_model()) {
    const auto dims = tensor.shape.dims();
    list.push_back(
        {{"name", tensor.name}, {"shape", std::vector<std::uint64_t>(dims.begin(), dims.end())}});
  }
  return list.dump();
}

/// Runs work(rank, engine) on every worker's thread.
template <class Work>
void on_every_c_rank(const std::string& options, const Work& work) {
  auto groups = local_groups(kWorkers, R"({"workers_per_machine": 2})");
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&, rank] {
      const EngineHandle engine = make_engine(std::move(groups[rank]), model_json(), options);
      if (engine) work(rank, engine.get());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline Outcome hand_over(gradpress_engine* engine, std::uint32_t tensor,
                         std::vector<float>& gradient) {
  return call(gradpress_engine_ready, engine, tensor, gradient.data(), gradient.size(),
              GRADPRESS_FLOAT32);
}

/// One step by gradpress_engine_ready and gradpress_engine_wait.
inline Outcome run_c_step(gradpress_engine* engine, EngineGradients& gradients) {
  for (std::uint32_t i = 0; i < gradients.size(); ++i) {
    if (const Outcome given = hand_over(engine, i, gradients[i]); !given) return given;
  }
  return call(gradpress_engine_wait, engine, nullptr);
}

inline Json next_event(gradpress_engine* engine, std::int64_t timeout_ms = -1) {
  std::string text;
  const Outcome outcome = call_for_text(text, gradpress_engine_next, engine, timeout_ms);
  EXPECT_TRUE(outcome) << outcome;
  return outcome ? Json::parse(text) : Json();
}

}  // namespace gradpress::test
