// One rank of a job of real processes; fault_test.py starts several and does things to them.
//
//   process_worker store           hosts a store, prints its port, ends with its input
//   process_worker ROLE            a rank, by the variables of the environment
// Roles: `loop` runs all-reduces until they fail, then forms a world of the others (VICTIM is not
// among them) and runs some more; `verify` runs every collective; `odd` gives another size than the
// others; `leave` goes after a few calls; `late` stops calling but lives on.
// It speaks in lines: "running", "failed CODE: MESSAGE", "recovered SIZE", "verified".
#include <gradpress/world.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/store/server.h"

namespace gradpress {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kElements = 1'000'003;
constexpr int kFewCalls = 3;

unsigned number_of(const char* name, unsigned otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

void say(const std::string& line) { std::cout << line << '\n' << std::flush; }

WorldOptions options() {
  WorldOptions wanted;
  wanted.backend = "gloo";
  wanted.timeout = std::chrono::milliseconds(number_of("TIMEOUT_MS", 30'000));
  wanted.start_timeout = std::chrono::milliseconds(number_of("START_TIMEOUT_MS", 60'000));
  return wanted;
}

/// Sums of small whole numbers: exact, whatever the order.
Status all_reduce(Group& group, std::vector<float>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 251 + group.rank());
  }
  const Status status = group.run({.kind = CollectiveKind::kAllReduce,
                                   .type = DataType::kFloat32,
                                   .in = std::as_bytes(std::span(values)),
                                   .out = std::as_writable_bytes(std::span(values)),
                                   .tensor = "conv1"});
  if (!status.is_ok()) return status;
  const unsigned size = group.size();
  const unsigned ranks = size * (size - 1) / 2;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != static_cast<float>(i % 251 * size + ranks)) {
      return Status::error(Code::kInternal, "element ", i, " is ", values[i]);
    }
  }
  return {};
}

int fail_with(const Status& status) {
  say("failed " + std::string(code_name(status.code())) + ": " + status.message());
  return status.code() == Code::kPeerLost ? 3 : 1;
}

/// Forms a world without the victim, in this same process, and uses it.
int recover(unsigned old_rank, unsigned old_size) {
  const unsigned victim = number_of("VICTIM", old_size);
  if (victim == old_size) return 0;
  WorldOptions wanted = options();
  wanted.rank = old_rank - (old_rank > victim ? 1 : 0);
  wanted.size = old_size - 1;
  wanted.local_rank = 0;
  wanted.local_size = 1;
  wanted.restart = 1;
  auto world = connect_world(wanted);
  if (!world) return fail_with(world.error());
  std::vector<float> values(kElements);
  for (int i = 0; i < kFewCalls; ++i) {
    const Status status = all_reduce(*world->group, values);
    if (!status.is_ok()) return fail_with(status);
  }
  say("recovered " + std::to_string(world->group->size()));
  return 0;
}

int loop(World world, std::string_view role) {
  const unsigned rank = world.group->rank();
  const unsigned size = world.group->size();
  std::vector<float> values(role == "odd" ? kElements + 1 : kElements);
  for (int call = 0;; ++call) {
    if (call == kFewCalls) say("running");
    if (call == kFewCalls && role == "leave") return 0;
    if (call == kFewCalls && role == "late") std::this_thread::sleep_for(600s);
    const Status status = all_reduce(*world.group, values);
    if (status.is_ok()) continue;
    (void)fail_with(status);
    world.group.reset();
    return recover(rank, size);
  }
}

int verify(const World& world) {
  Group& group = *world.group;
  std::vector<float> values(kElements);
  std::vector<unsigned> everyone(group.size());
  std::iota(everyone.rbegin(), everyone.rend(), 0U);
  auto reversed = group.subgroup(everyone);
  if (!reversed) return fail_with(reversed.error());
  for (int i = 0; i < kFewCalls; ++i) {
    Status status = all_reduce(group, values);
    if (status.is_ok()) status = all_reduce(**reversed, values);
    if (status.is_ok()) status = group.run({.kind = CollectiveKind::kBarrier});
    if (!status.is_ok()) return fail_with(status);
  }
  say("verified");
  return 0;
}

int host_store() {
  bool in_use = false;
  const auto server = comm::store::StoreServer::start({.host = "127.0.0.1", .port = 0}, in_use);
  if (!server) return fail_with(server.error());
  say(std::to_string((*server)->port()));
  std::string line;
  while (std::getline(std::cin, line)) {
  }
  return 0;
}

int run(std::string_view role) {
  if (role == "store") return host_store();
  auto world = connect_world(options());
  if (!world) return fail_with(world.error());
  return role == "verify" ? verify(*world) : loop(std::move(*world), role);
}

}  // namespace
}  // namespace gradpress

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "process_worker store|loop|verify|odd|leave|late\n");
    return 2;
  }
  return gradpress::run(argv[1]);
}
