#include "comm/store/roll_call.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <thread>
#include <vector>

namespace gradpress::comm::store {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{2};
constexpr milliseconds kLongestPause{100};
/// Missing ranks that an error names one by one.
constexpr std::size_t kNamed = 16;

/// Tells all that the group cannot be.
Status refuse(StoreClient& store, const RollCall& call, std::string_view why) {
  (void)store.compare_set(call.key + "/refused", "", why);
  return Status::error(Code::kInvalidArgument, call.what, ": ", why);
}

/// Who and where: differs between two processes that say they are the same rank.
std::string token(const StoreClient& store) {
  return "process " + std::to_string(getpid()) + " at " + store.own_address() + ", " +
         std::to_string(steady_clock().now().count());
}

Status announce(StoreClient& store, const RollCall& call) {
  const std::string rank = std::to_string(call.rank);
  const std::string mine = "rank " + rank + " says " + call.facts;
  const auto said = store.compare_set(call.key + "/facts", "", mine);
  if (!said) return said.error();
  const std::size_t says = said->find(" says ");
  if (says == std::string::npos || said->substr(says + 6) != call.facts) {
    return refuse(store, call, "ranks disagree: " + *said + ", " + mine);
  }
  const std::string own = token(store);
  const auto holder = store.compare_set(call.key + "/here/" + rank, "", own);
  if (!holder) return holder.error();
  if (*holder != own) {
    return refuse(store, call,
                  "rank " + rank + " is claimed by " + *holder + " and by " + own +
                      "; an attempt after the first needs another restart count");
  }
  return {};
}

std::string missing_text(const std::vector<unsigned>& missing) {
  std::string text = missing.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(missing.size(), kNamed); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(missing[i]);
  }
  if (missing.size() > kNamed) {
    text += " and " + std::to_string(missing.size() - kNamed) + " more";
  }
  return text;
}

Result<std::vector<unsigned>> missing_ranks(StoreClient& store, const RollCall& call) {
  const std::string prefix = call.key + "/here/";
  const auto entries = store.list(prefix);
  if (!entries) return tl::unexpected(entries.error());
  std::vector<unsigned> missing(call.members.begin(), call.members.end());
  for (const StoreClient::Entry& entry : *entries) {
    unsigned rank = 0;
    const char* end = entry.key.data() + entry.key.size();
    if (std::from_chars(entry.key.data() + prefix.size(), end, rank).ptr != end) continue;
    std::erase(missing, rank);
  }
  return missing;
}

}  // namespace

Status call_roll(StoreClient& store, const RollCall& call) {
  const Time start = steady_clock().now();
  const Time deadline = start + call.patience;
  const Status announced = announce(store, call);
  if (!announced.is_ok()) return announced;
  milliseconds pause = kFirstPause;
  while (true) {
    const auto refused = store.find(call.key + "/refused");
    if (!refused) return refused.error();
    if (!refused->empty()) {
      return Status::error(Code::kInvalidArgument, call.what, ": ", *refused);
    }
    const auto missing = missing_ranks(store, call);
    if (!missing) return missing.error();
    if (missing->empty()) return {};
    const Time now = steady_clock().now();
    if (now >= deadline) {
      return Status::error(Code::kPeerLost, call.what, ": ", missing_text(*missing), " of ",
                           call.members.size(), " did not come to the store at ",
                           store.address().text(), " within ",
                           std::chrono::duration<double>(now - start).count(),
                           " s; see why they did not start, or raise start_timeout_s");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace gradpress::comm::store
