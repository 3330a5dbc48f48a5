#include "engine/store_plan.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <optional>

namespace gradpress::engine {

namespace {

constexpr std::size_t kLinks = 2;
constexpr std::uint32_t kPerLane = 2;

/// Plays a step in which every collective takes as long as any other.
class Play {
 public:
  Play(const Program& program, const comm::Topology& topology,
       const std::vector<std::uint32_t>& before)
      : program_(program),
        topology_(topology),
        before_(before),
        at_(program.messages.size(), 0),
        time_(program.messages.size(), 0),
        first_(program.messages.size(), std::nullopt) {
    for (std::uint32_t i = 0; i < program.messages.size(); ++i) skip_untimed(i);
    while (sweep()) {
    }
  }

  bool is_complete() const {
    for (std::uint32_t i = 0; i < at_.size(); ++i) {
      if (!ended(i)) return false;
    }
    return true;
  }
  /// When the message takes a link first; what takes none comes at once.
  std::uint64_t first(std::uint32_t message) const { return first_[message].value_or(0); }

 private:
  void skip_untimed(std::uint32_t message) {
    const auto actions = program_.messages[message].option.actions();
    while (at_[message] < actions.size() && !link_of(actions[at_[message]], topology_)) {
      ++at_[message];
    }
  }
  bool ended(std::uint32_t message) const {
    return at_[message] == program_.messages[message].option.actions().size() && granted(message);
  }
  bool granted(std::uint32_t message) const {
    const std::uint32_t before = before_[message];
    return before == kNoMessage || first_[message] || ended(before);
  }

  bool sweep() {
    bool moved = false;
    for (std::size_t link = 0; link < kLinks; ++link) {
      for (; next_[link] < program_.order[link].size(); ++next_[link]) {
        const Turn turn = program_.order[link][next_[link]];
        if (at_[turn.message] != turn.stage || !granted(turn.message)) break;
        std::uint64_t& time = time_[turn.message];
        const std::uint32_t before = before_[turn.message];
        if (before != kNoMessage) time = std::max(time, time_[before]);
        time = std::max(time, free_[link]);
        if (!first_[turn.message]) first_[turn.message] = time;
        free_[link] = ++time;
        ++at_[turn.message];
        skip_untimed(turn.message);
        moved = true;
      }
    }
    return moved;
  }

  const Program& program_;
  const comm::Topology& topology_;
  const std::vector<std::uint32_t>& before_;
  std::vector<std::uint32_t> at_;
  std::vector<std::uint64_t> time_;
  std::vector<std::optional<std::uint64_t>> first_;
  std::array<std::size_t, kLinks> next_{};
  std::array<std::uint64_t, kLinks> free_{};
};

}  // namespace

bool needs_store(const plan::Option& option) {
  return !option.is_raw() || option.actions().size() > 1;
}

std::uint32_t stores_for(std::span<const sync::MessageSpec> messages,
                         const comm::Topology& topology) {
  bool device = false;
  bool host = false;
  std::array<bool, kLinks> links{};
  for (const sync::MessageSpec& message : messages) {
    if (!needs_store(message.option)) continue;
    for (const plan::Action& action : message.option.actions()) {
      if (const auto link = link_of(action, topology)) {
        links[static_cast<std::size_t>(*link)] = true;
      } else if (action.kind != plan::ActionKind::kComm) {
        (action.place == plan::Place::kHost ? host : device) = true;
      }
    }
  }
  const auto lanes = static_cast<std::uint32_t>(device) + static_cast<std::uint32_t>(host) +
                     static_cast<std::uint32_t>(links[0]) + static_cast<std::uint32_t>(links[1]);
  return kPerLane * std::max(1U, lanes);
}

StorePlan plan_stores(const Program& program, const comm::Topology& topology, bool serial) {
  const std::size_t messages = program.messages.size();
  StorePlan plan{.of_message = std::vector<std::uint32_t>(messages, kNoStore),
                 .before = std::vector<std::uint32_t>(messages, kNoMessage)};
  std::vector<std::uint32_t> stored;
  for (std::uint32_t i = 0; i < messages; ++i) {
    if (needs_store(program.messages[i].option)) stored.push_back(i);
  }
  if (stored.empty()) return plan;
  if (!serial) {
    const Play unbounded(program, topology, plan.before);
    std::ranges::stable_sort(stored, {},
                             [&](std::uint32_t message) { return unbounded.first(message); });
  }
  const auto count = static_cast<std::uint32_t>(stored.size());
  plan.stores = std::min(count, serial ? 1 : stores_for(program.messages, topology));
  for (;; ++plan.stores) {
    for (std::uint32_t i = 0; i < count; ++i) {
      plan.of_message[stored[i]] = i % plan.stores;
      plan.before[stored[i]] = i < plan.stores ? kNoMessage : stored[i - plan.stores];
    }
    // With a store for every message nobody waits for one. Message after message in the order of
    // their numbers needs no lanes' orders.
    if (serial || plan.stores == count || Play(program, topology, plan.before).is_complete()) {
      return plan;
    }
  }
}

}  // namespace gradpress::engine
