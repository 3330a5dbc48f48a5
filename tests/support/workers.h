// Workers as threads: one per end of a group.
#pragma once

#include <gradpress/group.h>

#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace gradpress::test {

using World = std::vector<std::unique_ptr<Group>>;

/// Runs work(group) for every end at the same time and returns when all have.
template <class Work>
void run_workers(World& world, const Work& work) {
  std::vector<std::thread> threads;
  for (const auto& group : world) {
    threads.emplace_back([&work, end = group.get()] { work(*end); });
  }
  for (std::thread& thread : threads) thread.join();
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <class T>
std::span<std::byte> bytes_of(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

}  // namespace gradpress::test
