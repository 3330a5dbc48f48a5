// One worker of a world of processes: every path of the tree, against the textbook. A launcher sets
// the variables that connect_world reads; the exit code is 0 when all is well.
#include <gradpress/world.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "plan/tree.h"
#include "sync/option_runs.h"

namespace gradpress::test {
namespace {

std::string complaints_of(const std::string& backend) {
  // Two workers a machine, though all share this one.
  auto world =
      connect_world({.backend = backend, .timeout = std::chrono::minutes(2), .local_size = 2});
  if (!world) return world.error().to_string() + "\n";
  const comm::Topology topology{.machines = world->machines,
                                .workers_per_machine = world->workers_per_machine};
  auto fabric = sync::Fabric::make(std::move(world->group), topology);
  if (!fabric) return fabric.error().to_string() + "\n";
  const auto paper = plan::OptionTree({.host = false}).options();
  std::vector<std::string> complaints =
      run_options_on(*fabric, paper, {"topk:0.2", "efsign", "qsgd:4"});
  if (!complaints.empty()) return listed(complaints);
  const auto extended = plan::OptionTree({.host = false, .extended = true}).options();
  return listed(run_options_on(*fabric, extended, {"fp16", "acpsgd:2", "powersgd:2"}));
}

}  // namespace
}  // namespace gradpress::test

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: sync_processes_test BACKEND, once per worker\n", stderr);
    return 2;
  }
  const std::string complaints = gradpress::test::complaints_of(argv[1]);
  std::fputs(complaints.c_str(), stderr);
  return complaints.empty() ? 0 : 1;
}
