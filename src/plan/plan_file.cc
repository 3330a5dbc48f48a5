#include "plan/plan_file.h"

#include <algorithm>
#include <span>

#include "plan/plan_reader.h"

namespace gradpress::plan {

namespace {

/// Messages by the lane their spans take, as they take it.
PlannedOrder order_of(const Timeline& timeline) {
  // Spans stand in the order in which they end, which on one lane is that in which they begin.
  PlannedOrder order;
  for (const Span& span : timeline.spans) {
    if (span.lane == Lane::kIntra) order.intra.push_back(span.message);
    if (span.lane == Lane::kInter) order.inter.push_back(span.message);
  }
  return order;
}

/// When each message's last task ends; 0 for those that have none.
std::vector<double> message_ends(const Timeline& timeline, std::uint32_t messages) {
  std::vector<double> ends(messages, 0.0);
  for (const Span& span : timeline.spans) {
    if (span.kind != SpanKind::kBackward)
      ends[span.message] = std::max(ends[span.message], span.end_us);
  }
  return ends;
}

Json to_json(const PlannedOrder& order) { return {{"intra", order.intra}, {"inter", order.inter}}; }

}  // namespace

PlanTarget target_of(const Trace& trace, const Topology& topology) {
  PlanTarget target{.machines = topology.machines, .workers_per_machine = topology.workers};
  target.tensors.reserve(trace.tensors.size());
  for (const Tensor& tensor : trace.tensors) target.tensors.push_back({tensor.name, tensor.shape});
  return target;
}

gradpress::Plan public_plan(const Setting& setting, const Plan& plan) {
  gradpress::Plan made{.model = setting.trace.model,
                       .cluster = setting.cluster.name,
                       .strategy = plan.strategy_name,
                       .verdict = plan.verdict,
                       .tree = plan.extended ? "extended" : "paper",
                       .machines = setting.cluster.topology.machines,
                       .workers_per_machine = setting.cluster.topology.workers,
                       .alternates = alternates(setting, plan.strategy),
                       .order = order_of(plan.timeline),
                       .iteration_us = plan.iteration_us};
  const Buckets& second = plan.strategy.of_round(1);
  if (made.alternates) made.order_q = order_of(predict(setting, plan.strategy, 1));
  const std::vector<double> ends = message_ends(plan.timeline, plan.strategy.buckets.count);
  std::vector<double> ready(setting.trace.tensors.size(), 0.0);
  for (const Span& span : plan.timeline.spans) {
    if (span.kind == SpanKind::kBackward) ready[span.tensor] = span.end_us;
  }
  for (std::size_t i = 0; i < setting.trace.tensors.size(); ++i) {
    const Tensor& tensor = setting.trace.tensors[i];
    const Choice& choice = plan.strategy.choices[i];
    const std::uint32_t bucket = plan.strategy.buckets.of_tensor[i];
    // A gradient without a backward of its own is ready with the one before it.
    if (tensor.ready_gap_us == 0.0 && i > 0) ready[i] = ready[i - 1];
    made.tensors.push_back(
        {.name = tensor.name,
         .shape = tensor.shape,
         .codec = choice.option.is_raw() ? "none" : codec::to_text(setting.codecs[choice.codec]),
         .option = to_text(choice.option),
         .bucket = bucket,
         .bucket_q = made.alternates ? second.of_tensor[i] : bucket,
         .predicted_us = std::max(0.0, ends[bucket] - ready[i])});
  }
  return made;
}

Json to_json(const gradpress::Plan& plan) {
  PlanTarget target{.machines = plan.machines, .workers_per_machine = plan.workers_per_machine};
  for (const PlannedTensor& tensor : plan.tensors) {
    target.tensors.push_back({tensor.name, tensor.shape});
  }
  Json json = {{"format", kPlanFormat},
               {"hash", plan_hash(target, plan.tree)},
               {"model", plan.model},
               {"cluster", plan.cluster},
               {"machines", plan.machines},
               {"workers_per_machine", plan.workers_per_machine},
               {"tree", plan.tree},
               {"strategy", plan.strategy},
               {"iteration_us", plan.iteration_us}};
  if (plan.measured_us > 0.0) json["measured_us"] = plan.measured_us;
  json["verdict"] = plan.verdict;
  json["order"] = to_json(plan.order);
  if (plan.alternates) json["order_q"] = to_json(plan.order_q);
  json["tensors"] = Json::array();
  for (const PlannedTensor& tensor : plan.tensors) {
    Json entry = {{"name", tensor.name},
                  {"shape", tensor.shape.dims()},
                  {"elements", tensor.shape.elements()},
                  {"codec", tensor.codec},
                  {"option", tensor.option},
                  {"bucket", tensor.bucket}};
    if (plan.alternates) {
      entry["bucket_p"] = tensor.bucket;
      entry["bucket_q"] = tensor.bucket_q;
    }
    entry["predicted_us"] = tensor.predicted_us;
    if (tensor.measured_us > 0.0) entry["measured_us"] = tensor.measured_us;
    json["tensors"].push_back(std::move(entry));
  }
  return json;
}

Json to_json(const Setting& setting, const Plan& plan) {
  Json json = to_json(public_plan(setting, plan));
  std::string codecs;
  for (const codec::Spec& spec : setting.codecs) {
    codecs.append(codecs.empty() ? "" : ",").append(codec::to_text(spec));
  }
  json["codec"] = codecs;
  json["bound_us"] = plan.bound_us;
  json["raw_us"] = plan.raw_us;
  json["forward_us"] = plan.timeline.forward_us;
  json["backward_us"] = plan.timeline.backward_us;
  json["exposed_comm_us"] = plan.timeline.exposed_comm_us;
  json["exposed_codec_us"] = plan.timeline.exposed_codec_us;
  json["warnings"] = plan.warnings;
  return json;
}

namespace {

/// Bucket numbers of a file may have holes; the simulator's have none. What travels raw beside
/// payloads is a message of its own there: its members have one option.
Buckets without_holes(std::span<const std::uint32_t> numbers, std::span<const Choice> choices) {
  std::vector<std::uint64_t> keys;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    keys.push_back(2 * std::uint64_t{numbers[i]} + (choices[i].option.is_raw() ? 1 : 0));
  }
  std::vector<std::uint64_t> used = keys;
  std::ranges::sort(used);
  used.erase(std::unique(used.begin(), used.end()), used.end());
  Buckets buckets{.of_tensor = {}, .count = static_cast<std::uint32_t>(used.size())};
  for (const std::uint64_t key : keys) {
    buckets.of_tensor.push_back(
        static_cast<std::uint32_t>(std::ranges::lower_bound(used, key) - used.begin()));
  }
  return buckets;
}

/// Texts of a plan that was read: they parsed before.
Result<Choice> choice_of(const PlannedTensor& tensor, const Cluster& cluster,
                         std::vector<codec::Spec>& codecs) {
  const auto option = parse_option(tensor.option);
  if (!option) return tl::unexpected(option.error());
  Choice choice{.option = *option};
  if (option->is_raw()) return choice;
  const auto spec = codec::parse_spec(tensor.codec);
  if (!spec) return tl::unexpected(spec.error());
  for (const Action& action : option->actions()) {
    if (action.kind == ActionKind::kComm || cluster.costs(*spec, action.place) != nullptr) continue;
    return fail(Code::kInvalidArgument, "tensor ", tensor.name, ": cluster ", cluster.name,
                " has no costs of ", tensor.codec, " on the ", to_text(action.place),
                ": add them to codec_costs, or plan for this cluster");
  }
  auto known = std::ranges::find(codecs, *spec);
  if (known == codecs.end()) known = codecs.insert(codecs.end(), *spec);
  choice.codec = static_cast<std::uint8_t>(known - codecs.begin());
  return choice;
}

}  // namespace

Result<PlanFile> read_plan(const std::string& file, const Trace& trace, const Cluster& cluster) {
  const auto plan = load_plan(file, target_of(trace, cluster.topology));
  if (!plan) return tl::unexpected(plan.error());
  PlanFile result;
  std::vector<std::uint32_t> first;
  std::vector<std::uint32_t> second;
  for (const PlannedTensor& tensor : plan->tensors) {
    auto choice = choice_of(tensor, cluster, result.codecs);
    if (!choice) return fail(Code::kInvalidArgument, file, ": ", choice.error().message());
    result.strategy.choices.push_back(*choice);
    first.push_back(tensor.bucket);
    second.push_back(tensor.bucket_q);
  }
  result.strategy.buckets = without_holes(first, result.strategy.choices);
  if (plan->alternates) result.strategy.buckets_q = without_holes(second, result.strategy.choices);
  return result;
}

}  // namespace gradpress::plan

namespace gradpress {

Status save_plan(const std::string& file, const Plan& plan) {
  return write_json(file, plan::to_json(plan));
}

Result<Plan> make_plan(const PlanRequest& request) {
  const auto trace = plan::read_trace(request.trace_file);
  if (!trace) return tl::unexpected(trace.error());
  const auto cluster = plan::read_cluster(request.cluster_file);
  if (!cluster) return tl::unexpected(cluster.error());
  std::vector<codec::Spec> codecs;
  for (const std::string& text : request.codecs) {
    const auto spec = codec::parse_spec(text);
    if (!spec) return tl::unexpected(spec.error());
    codecs.push_back(*spec);
  }
  plan::PlanOptions options{.strategy = request.strategy};
  options.tree.extended = request.extended_tree;
  options.fusion = request.fusion ? plan::Fusion::kAuto : plan::Fusion::kNone;
  const plan::Setting setting{*trace, *cluster, codecs};
  const auto made = plan::make_plan(setting, options);
  if (!made) return tl::unexpected(made.error());
  return plan::public_plan(setting, *made);
}

}  // namespace gradpress
