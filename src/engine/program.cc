#include "engine/program.h"

#include <algorithm>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "engine/store_plan.h"

namespace gradpress::engine {

namespace {

constexpr std::size_t kLinks = 2;

std::size_t index_of(sync::Link link) { return static_cast<std::size_t>(link); }

std::string name_of(const Program& program, const Turn& turn) {
  const sync::MessageSpec& message = program.messages[turn.message];
  std::string name = "message " + std::to_string(turn.message);
  if (!message.members.empty()) name += " (" + message.members.front().name + ")";
  return name + ", stage " + std::to_string(turn.stage);
}

}  // namespace

std::optional<sync::Link> link_of(const plan::Action& action, const comm::Topology& topology) {
  if (action.kind != plan::ActionKind::kComm) return std::nullopt;
  const bool one_machine = topology.machines == 1;
  switch (action.phase) {
    case plan::Phase::kFlat:
      if (topology.workers() == 1) return std::nullopt;
      return one_machine ? sync::Link::kIntra : sync::Link::kInter;
    case plan::Phase::kInter:
      return one_machine ? std::nullopt : std::optional(sync::Link::kInter);
    case plan::Phase::kIntra1:
    case plan::Phase::kIntra2:
      return topology.workers_per_machine == 1 ? std::nullopt : std::optional(sync::Link::kIntra);
  }
  return std::nullopt;
}

std::vector<sync::MessageSpec> make_messages(std::span<const TensorSpec> tensors,
                                             const plan::Strategy& strategy,
                                             std::span<const codec::Spec> codecs,
                                             std::uint64_t seed, unsigned round) {
  const plan::Buckets& buckets = strategy.of_round(round);
  std::vector<sync::MessageSpec> messages(buckets.count);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const plan::Choice& choice = strategy.choices[i];
    sync::MessageSpec& message = messages[buckets.of_tensor[i]];
    message.option = choice.option;
    message.seed = seed;
    message.members.push_back(
        {.name = tensors[i].name,
         .shape = tensors[i].shape,
         .tensor = i,
         .codec = choice.option.is_raw() ? "none" : codec::to_text(codecs[choice.codec])});
  }
  return messages;
}

std::array<std::vector<Turn>, 2> order_of(std::span<const plan::Span> spans,
                                          std::span<const sync::MessageSpec> messages,
                                          const comm::Topology& topology) {
  std::vector<plan::Span> sorted;
  for (const plan::Span& span : spans) {
    if (span.kind == plan::SpanKind::kComm) sorted.push_back(span);
  }
  // Equal starts on one link cannot be: a lane runs one task at a time.
  std::ranges::stable_sort(sorted, {}, &plan::Span::start_us);
  std::array<std::vector<Turn>, kLinks> order;
  for (const plan::Span& span : sorted) {
    const plan::Action& action = messages[span.message].option.actions()[span.action];
    if (const auto link = link_of(action, topology)) {
      order[index_of(*link)].push_back({.message = span.message, .stage = span.action});
    }
  }
  return order;
}

std::array<std::vector<Turn>, 2> natural_order(std::span<const sync::MessageSpec> messages,
                                               const comm::Topology& topology) {
  // (time, message, stage): the smallest goes first.
  using Event = std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  for (std::uint32_t i = 0; i < messages.size(); ++i) events.emplace(i, i, 0);
  std::array<std::vector<Turn>, kLinks> order;
  std::array<std::uint64_t, kLinks> free_at{};
  const std::uint32_t most = stores_for(messages, topology);
  std::uint32_t under_way = 0;
  std::vector<bool> begun(messages.size(), false);
  std::queue<Event> waiting;
  while (!events.empty()) {
    auto [time, message, stage] = events.top();
    events.pop();
    const plan::Option& option = messages[message].option;
    const bool counts = needs_store(option);
    if (stage == option.actions().size()) {
      if (!counts || !begun[message]) continue;
      --under_way;
      if (waiting.empty()) continue;
      const auto [since, next, first] = waiting.front();
      waiting.pop();
      events.emplace(std::max(since, time), next, first);
      continue;
    }
    if (const auto link = link_of(option.actions()[stage], topology)) {
      if (counts && !begun[message]) {
        if (under_way == most) {
          waiting.emplace(time, message, stage);
          continue;
        }
        begun[message] = true;
        ++under_way;
      }
      std::uint64_t& free = free_at[index_of(*link)];
      order[index_of(*link)].push_back({.message = message, .stage = stage});
      free = std::max(free, time) + 1;
      time = free;
    } else {
      ++time;
    }
    events.emplace(time, message, stage + 1);
  }
  return order;
}

Status check_order(const Program& program, const comm::Topology& topology) {
  // Plays the step: each link takes its next turn as soon as the message has come that far.
  std::vector<std::uint32_t> at(program.messages.size(), 0);
  const auto skip_untimed = [&](std::uint32_t message) {
    const auto actions = program.messages[message].option.actions();
    while (at[message] < actions.size() && !link_of(actions[at[message]], topology)) ++at[message];
  };
  for (std::uint32_t i = 0; i < program.messages.size(); ++i) skip_untimed(i);
  std::array<std::size_t, kLinks> next{};
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t link = 0; link < kLinks; ++link) {
      for (; next[link] < program.order[link].size(); ++next[link]) {
        const Turn turn = program.order[link][next[link]];
        if (turn.message >= program.messages.size()) {
          return Status::error(Code::kInvalidArgument, "order: wanted a message below ",
                               program.messages.size(), ", got ", turn.message);
        }
        const auto actions = program.messages[turn.message].option.actions();
        if (turn.stage >= actions.size() || at[turn.message] != turn.stage ||
            index_of(*link_of(actions[turn.stage], topology)) != link) {
          break;
        }
        ++at[turn.message];
        skip_untimed(turn.message);
        moved = true;
      }
    }
  }
  for (std::size_t link = 0; link < kLinks; ++link) {
    if (next[link] < program.order[link].size()) {
      return Status::error(Code::kInvalidArgument, "order of ", link == 0 ? "intra" : "inter",
                           ": the turn of ", name_of(program, program.order[link][next[link]]),
                           " can never come: an earlier stage has no turn, or one behind this");
    }
  }
  for (std::uint32_t i = 0; i < program.messages.size(); ++i) {
    if (at[i] < program.messages[i].option.actions().size()) {
      return Status::error(Code::kInvalidArgument,
                           "order: ", name_of(program, {.message = i, .stage = at[i]}),
                           " has no turn on its link");
    }
  }
  return {};
}

}  // namespace gradpress::engine
