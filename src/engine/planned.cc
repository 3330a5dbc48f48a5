#include "engine/planned.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "spec/facts.h"

namespace gradpress::engine {

namespace {

using Buckets = std::map<std::uint32_t, std::uint32_t>;  ///< a plan's number to a message's

constexpr std::string_view kRaw = "allreduce@flat";

Status wrong_bucket(std::uint32_t bucket, const sync::MessageSpec& message,
                    const PlannedTensor& tensor) {
  return Status::error(Code::kInvalidArgument, "plan: bucket ", bucket,
                       ": members share one option, and that of ", tensor.name, " (", tensor.option,
                       ") differs from that of ", message.members.front().name, " (",
                       plan::to_text(message.option), ")");
}

Status add_member(const PlannedTensor& planned, std::uint64_t tensor, std::uint32_t bucket,
                  sync::MessageSpec& message) {
  const auto option = plan::parse_option(planned.option);
  if (!option) {
    return Status::error(Code::kInvalidArgument, "plan: tensor ", planned.name, ": ",
                         option.error().message());
  }
  sync::Member member{.name = planned.name, .shape = planned.shape, .tensor = tensor};
  if (!option->is_raw()) member.codec = planned.codec;
  const bool is_first = message.members.empty();
  const bool beside = !is_first && option->is_raw() != message.option.is_raw();
  if (!is_first && !beside && !(*option == message.option)) {
    return wrong_bucket(bucket, message, planned);
  }
  if (is_first || (beside && !option->is_raw())) message.option = *option;
  message.members.push_back(std::move(member));
  return {};
}

/// A message's k-th appearance on a link is the turn of its k-th collective there.
Result<std::vector<Turn>> turns_of(std::span<const std::uint32_t> order, sync::Link link,
                                   const Buckets& buckets, const Program& program,
                                   const comm::Topology& topology) {
  std::vector<std::uint32_t> next(program.messages.size(), 0);
  std::vector<Turn> turns;
  for (const std::uint32_t bucket : order) {
    const auto found = buckets.find(bucket);
    if (found == buckets.end()) {
      return fail(Code::kInvalidArgument, "plan: its order names bucket ", bucket,
                  ", and no tensor is in it");
    }
    const auto actions = program.messages[found->second].option.actions();
    std::uint32_t& stage = next[found->second];
    while (stage < actions.size() && link_of(actions[stage], topology) != link) ++stage;
    if (stage == actions.size()) {
      return fail(Code::kInvalidArgument, "plan: its order names bucket ", bucket,
                  " more often than it has collectives on that link");
    }
    turns.push_back({.message = found->second, .stage = stage++});
  }
  return turns;
}

struct Part {
  bool second = false;
  const PlannedOrder& order;
};

Result<Program> program_of(const gradpress::Plan& plan, const Part& part,
                           std::span<const std::uint64_t> numbers, const comm::Topology& topology,
                           std::uint64_t seed) {
  Buckets buckets;
  const auto bucket_of = [&](const PlannedTensor& tensor) {
    return part.second ? tensor.bucket_q : tensor.bucket;
  };
  for (const PlannedTensor& tensor : plan.tensors) buckets.emplace(bucket_of(tensor), 0);
  std::uint32_t count = 0;
  for (auto& [bucket, message] : buckets) message = count++;
  Program program{.messages = std::vector<sync::MessageSpec>(count)};
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const std::uint32_t bucket = bucket_of(plan.tensors[i]);
    sync::MessageSpec& message = program.messages[buckets[bucket]];
    message.seed = seed;
    Status status = add_member(plan.tensors[i], numbers[i], bucket, message);
    if (!status) return tl::unexpected(status);
  }
  if (part.order.intra.empty() && part.order.inter.empty()) {
    program.order = natural_order(program.messages, topology);
    return program;
  }
  for (const auto& [link, order] : {std::pair(sync::Link::kIntra, &part.order.intra),
                                    std::pair(sync::Link::kInter, &part.order.inter)}) {
    auto turns = turns_of(*order, link, buckets, program, topology);
    if (!turns) return tl::unexpected(turns.error());
    program.order[static_cast<std::size_t>(link)] = std::move(*turns);
  }
  if (Status status = check_order(program, topology); !status) return tl::unexpected(status);
  return program;
}

/// The engine's number of each tensor of the plan.
Result<std::vector<std::uint64_t>> numbers_of(const gradpress::Plan& plan,
                                              std::span<const TensorSpec> tensors) {
  std::map<std::string_view, std::uint64_t> by_name;
  for (std::size_t i = 0; i < tensors.size(); ++i) by_name.emplace(tensors[i].name, i);
  std::vector<std::uint64_t> numbers;
  for (const PlannedTensor& planned : plan.tensors) {
    const auto found = by_name.find(planned.name);
    if (found == by_name.end()) {
      return fail(Code::kInvalidArgument, "plan: tensor ", planned.name,
                  " is not one of the engine's, or stands in the plan twice");
    }
    const TensorSpec& tensor = tensors[found->second];
    if (!(tensor.shape == planned.shape)) {
      return fail(Code::kInvalidArgument, "plan: tensor ", planned.name, " has shape ",
                  planned.shape.to_string(), " there, and ", tensor.shape.to_string(), " here");
    }
    numbers.push_back(found->second);
    by_name.erase(found);
  }
  if (!by_name.empty()) {
    return fail(Code::kInvalidArgument, "plan: says nothing about tensor ", by_name.begin()->first);
  }
  return numbers;
}

PlannedOrder order_of_messages(const Program& program) {
  PlannedOrder order;
  for (const Turn& turn : program.order[0]) order.intra.push_back(turn.message);
  for (const Turn& turn : program.order[1]) order.inter.push_back(turn.message);
  return order;
}

bool alternates(const sync::Member& member) {
  const codec::Facts* const facts = codec::facts_of_text(member.codec);
  return facts != nullptr && facts->alternates();
}

}  // namespace

Result<Programs> programs_of(const gradpress::Plan& plan, std::span<const TensorSpec> tensors,
                             const comm::Topology& topology, std::uint64_t seed) {
  if (plan.machines != topology.machines ||
      plan.workers_per_machine != topology.workers_per_machine) {
    return fail(Code::kInvalidArgument, "plan: is for ", plan.machines, " machines x ",
                plan.workers_per_machine, " workers, this world has ", topology.machines, " x ",
                topology.workers_per_machine);
  }
  const auto numbers = numbers_of(plan, tensors);
  if (!numbers) return tl::unexpected(numbers.error());
  auto first = program_of(plan, {.second = false, .order = plan.order}, *numbers, topology, seed);
  if (!first) return tl::unexpected(first.error());
  Programs programs{.first = std::move(*first)};
  const bool alike = std::ranges::all_of(
      plan.tensors, [](const PlannedTensor& tensor) { return tensor.bucket == tensor.bucket_q; });
  const bool in_order =
      plan.order.intra == plan.order_q.intra && plan.order.inter == plan.order_q.inter;
  if (!plan.alternates || (alike && in_order)) return programs;
  auto second = program_of(plan, {.second = true, .order = plan.order_q}, *numbers, topology, seed);
  if (!second) return tl::unexpected(second.error());
  programs.second = std::move(*second);
  return programs;
}

gradpress::Plan plan_of(const Programs& programs, std::span<const TensorSpec> tensors,
                        const comm::Topology& topology) {
  gradpress::Plan plan{.tree = "extended",
                       .machines = topology.machines,
                       .workers_per_machine = topology.workers_per_machine};
  plan.tensors.resize(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    plan.tensors[i].name = tensors[i].name;
    plan.tensors[i].shape = tensors[i].shape;
  }
  const auto add = [&](const Program& program, bool second) {
    for (std::uint32_t i = 0; i < program.messages.size(); ++i) {
      const sync::MessageSpec& message = program.messages[i];
      for (const sync::Member& member : message.members) {
        PlannedTensor& tensor = plan.tensors[member.tensor];
        const bool beside = member.codec == "none" && !message.option.is_raw();
        tensor.codec = member.codec;
        tensor.option = beside ? std::string(kRaw) : plan::to_text(message.option);
        (second ? tensor.bucket_q : tensor.bucket) = i;
        plan.alternates = plan.alternates || alternates(member);
      }
    }
  };
  add(programs.first, false);
  add(programs.second ? *programs.second : programs.first, true);
  plan.order = order_of_messages(programs.first);
  if (plan.alternates) {
    plan.order_q = order_of_messages(programs.second ? *programs.second : programs.first);
  }
  return plan;
}

}  // namespace gradpress::engine
