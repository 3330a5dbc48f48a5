// Engines of a small model on every worker of a local world, and what they must keep.
#pragma once

#include <gradpress/engine.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/local/local.h"

namespace gradpress::test {

inline constexpr unsigned kWorkers = 4;  ///< on two machines

using EngineGradients = std::vector<std::vector<float>>;

inline std::vector<EngineTensor> small_model() {
  return {{.name = "fc.weight", .shape = Shape{40, 60}},
          {.name = "fc.bias", .shape = Shape{40}},
          {.name = "conv.weight", .shape = Shape{16, 8, 3, 3}},
          {.name = "conv.bias", .shape = Shape{16}},
          {.name = "embedding", .shape = Shape{1001, 3}}};
}

inline EngineGradients gradients_of(unsigned rank, unsigned step) {
  std::mt19937 random(100 * step + rank);
  std::normal_distribution<float> normal;
  EngineGradients gradients;
  for (const EngineTensor& tensor : small_model()) {
    std::vector<float>& gradient = gradients.emplace_back(tensor.shape.elements());
    for (float& value : gradient) value = normal(random);
  }
  return gradients;
}

/// Runs work(rank, engine) on every worker's thread; returns what went wrong in making engines.
template <class Work>
std::vector<Status> on_every_rank(const std::array<EngineOptions, kWorkers>& options,
                                  const Work& work) {
  auto world = comm::make_local_world({.topology = {.machines = 2, .workers_per_machine = 2}});
  std::vector<Status> failures(kWorkers);
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&, rank] {
      auto engine = Engine::make(
          {.group = std::move((*world)[rank]), .machines = 2, .workers_per_machine = 2},
          small_model(), options[rank]);
      if (!engine) {
        failures[rank] = engine.error();
        return;
      }
      work(rank, **engine);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

inline std::array<EngineOptions, kWorkers> alike(const EngineOptions& options) {
  return {options, options, options, options};
}

/// One step; the gradients become the result.
inline Result<EngineStep> run_step(Engine& engine, EngineGradients& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (Status status = engine.ready(i, gradients[i]); !status) return tl::unexpected(status);
  }
  return engine.wait();
}

/// workers × Σ applied + Σ residuals − Σ gradients, per element: zero when nothing is lost.
struct Ledger {
  std::mutex mutex;
  std::vector<std::vector<double>> balance;

  Ledger() {
    for (const EngineTensor& tensor : small_model()) balance.emplace_back(tensor.shape.elements());
  }
  void add(std::size_t tensor, std::span<const float> values, double factor) {
    const std::scoped_lock lock(mutex);
    for (std::size_t i = 0; i < values.size(); ++i) balance[tensor][i] += factor * values[i];
  }
  void add(const EngineGradients& values, double factor) {
    for (std::size_t i = 0; i < values.size(); ++i) add(i, values[i], factor);
  }
  void add_residuals(const Engine& engine) {
    for (std::size_t i = 0; i < balance.size(); ++i) {
      std::vector<float> residual(balance[i].size());
      engine.copy_residual(i, residual);
      add(i, residual, 1.0);
    }
  }
  double worst() const {
    double most = 0.0;
    for (const auto& tensor : balance) {
      for (const double value : tensor) most = std::max(most, std::abs(value));
    }
    return most;
  }
};

inline bool same_bits(const EngineGradients& a, const EngineGradients& b) {
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  return std::ranges::equal(
      a, b, [&](const auto& x, const auto& y) { return std::ranges::equal(x, y, {}, bits, bits); });
}

/// What every rank holds after each step, to be compared once all are done.
struct History {
  explicit History(unsigned count) : steps(kWorkers, std::vector<EngineGradients>(count)) {}
  std::vector<std::vector<EngineGradients>> steps;  ///< by rank, then step

  void expect_one_gradient() const {
    for (unsigned rank = 1; rank < kWorkers; ++rank) {
      for (std::size_t step = 0; step < steps[0].size(); ++step) {
        EXPECT_TRUE(same_bits(steps[0][step], steps[rank][step]))
            << "rank " << rank << ", step " << step;
      }
    }
  }
};

inline void expect_all_ok(const std::vector<Status>& failures) {
  for (const Status& status : failures) EXPECT_TRUE(status.is_ok()) << status.message();
}

/// A plan of the small model by hand: the matrices in their own buckets, vectors together and raw.
inline Plan plan_by_hand(const std::string& codec, const std::string& option) {
  Plan plan{.tree = "extended", .machines = 2, .workers_per_machine = 2};
  std::uint32_t bucket = 1;
  for (const EngineTensor& tensor : small_model()) {
    const bool raw = !tensor.shape.is_matrix();
    plan.tensors.push_back({.name = tensor.name,
                            .shape = tensor.shape,
                            .codec = raw ? "none" : codec,
                            .option = raw ? "allreduce@flat" : option,
                            .bucket = raw ? 0 : bucket,
                            .bucket_q = raw ? 0 : bucket});
    if (!raw) ++bucket;
  }
  return plan;
}

}  // namespace gradpress::test
