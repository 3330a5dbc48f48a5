// Workers with fabrics, and what they hold after steps of a message.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/local/local.h"
#include "plan/tree.h"
#include "sync/fabric.h"
#include "sync/message.h"

namespace gradpress::test {

/// One fabric per worker of a local world.
class Workers {
 public:
  explicit Workers(const comm::Topology& topology,
                   std::chrono::milliseconds timeout = std::chrono::minutes(5))
      : fabrics_(topology.workers()) {
    auto world = comm::make_local_world({.topology = topology, .timeout = timeout});
    if (!world) throw std::runtime_error(world.error().to_string());
    run_threads([&](unsigned rank) {
      auto made = sync::Fabric::make(std::move((*world)[rank]), topology);
      if (made) fabrics_[rank] = std::make_unique<sync::Fabric>(std::move(*made));
    });
  }

  unsigned size() const { return static_cast<unsigned>(fabrics_.size()); }
  sync::Fabric& fabric(unsigned rank) { return *fabrics_[rank]; }

  /// work(fabric) on every worker's thread at the same time.
  template <class Work>
  void run(const Work& work) {
    run_threads([&](unsigned rank) { work(*fabrics_[rank]); });
  }

 private:
  template <class Work>
  void run_threads(const Work& work) {
    std::vector<std::thread> threads;
    for (unsigned rank = 0; rank < fabrics_.size(); ++rank) {
      threads.emplace_back([&work, rank] { work(rank); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<sync::Fabric>> fabrics_;
};

/// The gradients of one worker, and the spans that begin() wants.
class Gradients {
 public:
  explicit Gradients(std::vector<std::vector<float>> values) : values_(std::move(values)) {
    for (auto& value : values_) spans_.emplace_back(value);
  }
  std::span<const std::span<float>> spans() const { return spans_; }
  const std::vector<std::vector<float>>& values() const { return values_; }
  std::vector<float>& operator[](std::size_t member) { return values_[member]; }

 private:
  std::vector<std::vector<float>> values_;
  std::vector<std::span<float>> spans_;
};

inline plan::Option option(const std::string& text) {
  auto parsed = plan::parse_option(text);
  if (!parsed) throw std::runtime_error(parsed.error().to_string());
  return *parsed;
}

/// All paths, each once: where codecs run changes nothing that they make.
inline std::vector<plan::Option> device_options(bool extended) {
  return plan::OptionTree({.host = false, .extended = extended}).options();
}

inline std::vector<sync::Member> members(const std::string& codec,
                                         const std::vector<Shape>& shapes) {
  std::vector<sync::Member> all;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    all.push_back({.name = std::string("t").append(std::to_string(i)),
                   .shape = shapes[i],
                   .tensor = i,
                   .codec = codec});
  }
  return all;
}

}  // namespace gradpress::test
