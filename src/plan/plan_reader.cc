#include "plan/plan_reader.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/field.h"
#include "plan/fit.h"
#include "plan/policy.h"
#include "plan/trace.h"
#include "spec/facts.h"

namespace gradpress::plan {

namespace {

Result<std::string> text_at(const Field& field, std::string_view key) {
  const auto found = field.at(key);
  return found ? found->text() : tl::unexpected(found.error());
}

Result<std::uint32_t> count_at(const Field& field, std::string_view key, std::uint64_t least) {
  const auto found = field.at(key);
  if (!found) return tl::unexpected(found.error());
  const auto count = found->whole(least, 0xFFFFFFFE);
  if (!count) return tl::unexpected(count.error());
  return static_cast<std::uint32_t>(*count);
}

/// A time of zero or more; 0 where the field is absent.
Result<double> time_at(const Field& field, std::string_view key) {
  if (!field.has(key)) return 0.0;
  const Field found = *field.at(key);
  return found.number(0.0);
}

/// One element of `tensors`: what it addresses, and what it says about it.
struct Entry {
  std::string pattern;
  std::string codec;
  std::string option_text;
  Option option;
  CodecFit fit;
  bool alternates = false;
  std::optional<std::uint32_t> bucket;
  std::optional<std::uint32_t> bucket_q;
  double predicted_us = 0.0;
  double measured_us = 0.0;
  bool used = false;

  bool is_pattern() const { return pattern.find_first_of("*?") != std::string::npos; }
};

Status read_buckets(const Field& field, bool bound, Entry& entry) {
  // bucket_p is the name that goes with bucket_q; bucket serves every other plan.
  for (const std::string_view key : {"bucket", "bucket_p"}) {
    if (!field.has(key)) continue;
    const auto bucket = count_at(field, key, 0);
    if (!bucket) return bucket.error();
    entry.bucket = *bucket;
  }
  if (field.has("bucket_q")) {
    const auto bucket = count_at(field, "bucket_q", 0);
    if (!bucket) return bucket.error();
    entry.bucket_q = *bucket;
  }
  // Only a plan written by hand may leave the numbers to the reader.
  if (bound && !entry.bucket) return field.at("bucket").error();
  if (bound && entry.alternates && !entry.bucket_q) return field.at("bucket_q").error();
  return {};
}

Status read_entry(const Field& field, bool bound, Entry& entry) {
  auto name = text_at(field, "name");
  if (!name) return name.error();
  entry.pattern = std::move(*name);
  auto codec = text_at(field, "codec");
  if (!codec) return codec.error();
  const auto spec = codec::parse_spec(*codec);
  if (!spec) return field.at("codec")->wrong(spec.error().message()).value();
  entry.codec = std::move(*codec);
  entry.fit = codec_fit(*spec);
  auto option_text = text_at(field, "option");
  if (!option_text) return option_text.error();
  const auto option = parse_option(*option_text);
  if (!option) return field.at("option")->wrong(option.error().message()).value();
  entry.option = *option;
  entry.option_text = std::move(*option_text);
  entry.alternates = codec::facts_of(*spec).alternates() && !option->is_raw();
  for (const auto& [key, us] : {std::pair("predicted_us", &entry.predicted_us),
                                std::pair("measured_us", &entry.measured_us)}) {
    const auto time = time_at(field, key);
    if (!time) return time.error();
    *us = *time;
  }
  return read_buckets(field, bound, entry);
}

/// What the plan was made for and what the target is, where they first differ.
Status difference(const Field& root, const PlanTarget& target) {
  const auto wanted_count = [&](std::string_view key, std::uint32_t wanted) -> Status {
    const auto got = count_at(root, key, 1);
    if (!got) return got.error();
    if (*got == wanted) return {};
    return root.at(key)->wrong(std::to_string(wanted) + ": the plan is for another world").value();
  };
  if (Status status = wanted_count("machines", target.machines); !status) return status;
  if (Status status = wanted_count("workers_per_machine", target.workers_per_machine); !status) {
    return status;
  }
  const Field tensors = *root.at("tensors");
  const std::size_t count = tensors.json().size();
  for (std::size_t i = 0; i < std::min(count, target.tensors.size()); ++i) {
    const Field entry = tensors.at(i);
    const PlanTarget::Tensor& wanted = target.tensors[i];
    const auto name = text_at(entry, "name");
    if (!name) return name.error();
    if (*name != wanted.name) {
      return entry.at("name")
          ->wrong("tensor " + wanted.name + ": the plan is for another model")
          .value();
    }
    const auto shape = entry.at("shape");
    if (!shape) return shape.error();
    if (shape->json() != Json(wanted.shape.dims())) {
      return fail(Code::kInvalidArgument, root.file(), ": ", shape->where(), ": wanted ",
                  wanted.shape.to_string(), " for tensor ", wanted.name, ", got ",
                  shape->json().dump(), ": the plan is for another model")
          .value();
    }
  }
  if (count != target.tensors.size()) {
    return tensors
        .wrong(std::to_string(target.tensors.size()) +
               " tensors, as the model has: the plan is for another model")
        .value();
  }
  return root.at("hash")
      ->wrong(
          "the hash of the plan's own names, shapes, world and tree: it was changed by hand; "
          "\"any\" stands for a plan that is not bound to a model")
      .value();
}

class Reader {
 public:
  Reader(const Field& root, const PlanTarget& target) : root_(root), target_(target) {}

  Result<gradpress::Plan> read() {
    using Part = Status (Reader::*)();
    for (const Part part : {&Reader::read_head, &Reader::read_entries, &Reader::resolve,
                            &Reader::check_buckets, &Reader::read_orders}) {
      if (const Status status = (this->*part)(); !status) return tl::unexpected(status);
    }
    return std::move(plan_);
  }

 private:
  Status read_head() {
    const auto hash = text_at(root_, "hash");
    if (!hash) {
      if (root_.has("hash")) return hash.error();
      return Status::error(Code::kInvalidArgument, hash.error().message(),
                           "; a plan written by hand says \"hash\": \"any\"");
    }
    bound_ = *hash != kAnyTarget;
    for (const auto& [key, text] :
         {std::pair("model", &plan_.model), std::pair("cluster", &plan_.cluster),
          std::pair("strategy", &plan_.strategy), std::pair("verdict", &plan_.verdict),
          std::pair("tree", &plan_.tree)}) {
      if (!bound_ && !root_.has(key)) continue;
      auto found = text_at(root_, key);
      if (!found) return found.error();
      *text = std::move(*found);
    }
    const auto tensors = root_.at("tensors");
    if (!tensors) return tensors.error();
    const auto length = tensors->length();
    if (!length) return length.error();
    plan_.machines = target_.machines;
    plan_.workers_per_machine = target_.workers_per_machine;
    if (bound_ && *hash != plan_hash(target_, plan_.tree)) return difference(root_, target_);
    if (bound_ && !root_.has("iteration_us")) return root_.at("iteration_us").error();
    for (const auto& [key, us] : {std::pair("iteration_us", &plan_.iteration_us),
                                  std::pair("measured_us", &plan_.measured_us)}) {
      const auto time = time_at(root_, key);
      if (!time) return time.error();
      *us = *time;
    }
    return {};
  }

  Status read_entries() {
    const Field tensors = *root_.at("tensors");
    entries_.resize(tensors.json().size());
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (Status status = read_entry(tensors.at(i), bound_, entries_[i]); !status) return status;
      if (entries_[i].bucket) next_bucket_ = std::max(next_bucket_, *entries_[i].bucket + 1);
      if (entries_[i].bucket_q)
        next_bucket_q_ = std::max(next_bucket_q_, *entries_[i].bucket_q + 1);
      if (!entries_[i].is_pattern()) by_name_.try_emplace(entries_[i].pattern, i);
    }
    return {};
  }

  /// The first entry that addresses a tensor.
  std::optional<std::size_t> entry_of(const std::string& name) const {
    const auto exact = by_name_.find(name);
    const std::size_t end = exact == by_name_.end() ? entries_.size() : exact->second;
    for (std::size_t i = 0; i < end; ++i) {
      if (entries_[i].is_pattern() && matches(entries_[i].pattern, name)) return i;
    }
    if (exact == by_name_.end()) return std::nullopt;
    return exact->second;
  }

  Status resolve() {
    const Field tensors = *root_.at("tensors");
    const Topology topology{.machines = target_.machines, .workers = target_.workers_per_machine};
    for (const PlanTarget::Tensor& tensor : target_.tensors) {
      const auto index = entry_of(tensor.name);
      if (!index) {
        return tensors.wrong("an entry whose name or pattern fits tensor " + tensor.name).value();
      }
      Entry& entry = entries_[*index];
      entry.used = true;
      const std::string reason = why_not(entry.option, entry.fit, tensor.shape, topology);
      if (!reason.empty()) {
        const Field field = tensors.at(*index);
        return field.at("option")
            ->wrong("an option that fits tensor " + tensor.name + ": " + reason)
            .value();
      }
      PlannedTensor planned{.name = tensor.name,
                            .shape = tensor.shape,
                            .codec = entry.option.is_raw() ? "none" : entry.codec,
                            .option = entry.option_text,
                            .predicted_us = entry.predicted_us,
                            .measured_us = entry.measured_us};
      planned.bucket = entry.bucket ? *entry.bucket : next_bucket_++;
      if (entry.bucket_q) {
        planned.bucket_q = *entry.bucket_q;
      } else {
        planned.bucket_q = entry.bucket && next_bucket_q_ == 0 ? *entry.bucket : next_bucket_q_++;
      }
      plan_.alternates = plan_.alternates || entry.alternates;
      plan_.tensors.push_back(std::move(planned));
      from_.push_back(*index);
    }
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].used) continue;
      const Field field = tensors.at(i);
      return field.at("name")->wrong("a name or pattern that fits a tensor of the model").value();
    }
    if (!plan_.alternates) {
      for (PlannedTensor& tensor : plan_.tensors) tensor.bucket_q = tensor.bucket;
    }
    return {};
  }

  const Entry& entry_of_tensor(std::size_t tensor) const { return entries_[from_[tensor]]; }
  bool alike(std::size_t a, std::size_t b) const {
    return plan_.tensors[a].codec == plan_.tensors[b].codec &&
           entry_of_tensor(a).option == entry_of_tensor(b).option;
  }
  bool is_raw(std::size_t tensor) const { return entry_of_tensor(tensor).option.is_raw(); }
  bool takes_raw(std::size_t tensor) const {
    const Entry& entry = entry_of_tensor(tensor);
    return !entry.option.is_raw() && entry.fit.whole_tensor && entry.fit.rounds == 1;
  }

  Status check_buckets() {
    for (const bool second : {false, true}) {
      std::unordered_map<std::uint32_t, std::size_t> first_member;
      for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
        const PlannedTensor& tensor = plan_.tensors[i];
        const std::uint32_t bucket = second ? tensor.bucket_q : tensor.bucket;
        const auto [at, is_new] = first_member.try_emplace(bucket, i);
        const std::size_t other = at->second;
        if (is_new || alike(other, i)) continue;
        // What travels raw may go beside low-rank payloads, which are summed as floats like it.
        if (takes_raw(other) && is_raw(i)) continue;
        if (is_raw(other) && takes_raw(i)) {
          at->second = i;
          continue;
        }
        const Field tensors = *root_.at("tensors");
        const Field field = tensors.at(from_[i]);
        return fail(Code::kInvalidArgument, root_.file(), ": ", field.where(), ": bucket ", bucket,
                    ": members share codec and option, and ", tensor.name, " differs from ",
                    plan_.tensors[other].name)
            .value();
      }
      (second ? buckets_q_ : buckets_) = std::move(first_member);
    }
    return {};
  }

  Status read_order(std::string_view key, bool second, PlannedOrder& order) {
    const auto field = root_.at(key);
    if (!field) return field.error();
    for (const auto& [lane, list] :
         {std::pair("intra", &order.intra), std::pair("inter", &order.inter)}) {
      const auto messages = field->at(lane);
      if (!messages) return messages.error();
      const auto length = messages->length();
      if (!length) return length.error();
      for (std::size_t i = 0; i < *length; ++i) {
        const Field element = messages->at(i);
        const auto message = element.whole(0, 0xFFFFFFFE);
        if (!message) return message.error();
        const auto number = static_cast<std::uint32_t>(*message);
        if (!(second ? buckets_q_ : buckets_).contains(number)) {
          return element.wrong("the number of a bucket").value();
        }
        list->push_back(number);
      }
    }
    return {};
  }

  Status read_orders() {
    if (bound_ || root_.has("order")) {
      if (Status status = read_order("order", false, plan_.order); !status) return status;
    }
    if (plan_.alternates && (bound_ || root_.has("order_q"))) {
      return read_order("order_q", true, plan_.order_q);
    }
    return {};
  }

  const Field& root_;
  const PlanTarget& target_;
  gradpress::Plan plan_;
  bool bound_ = true;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::uint32_t next_bucket_ = 0;
  std::uint32_t next_bucket_q_ = 0;
  std::vector<std::size_t> from_;  ///< per tensor, its entry
  std::unordered_map<std::uint32_t, std::size_t> buckets_, buckets_q_;
};

}  // namespace

Result<gradpress::Plan> plan_from_json(const Json& json, std::string_view file,
                                       const PlanTarget& target) {
  const Field root(json, file);
  const auto format = text_at(root, "format");
  if (!format) return tl::unexpected(format.error());
  if (*format != kPlanFormat) {
    return root.at("format")->wrong(std::string("\"").append(kPlanFormat).append("\""));
  }
  return Reader(root, target).read();
}

}  // namespace gradpress::plan

namespace gradpress {

std::string plan_hash(const PlanTarget& target, std::string_view tree) {
  // FNV-1a over the parts, each ended by a byte that no text has: a check against mistakes, not
  // against malice.
  std::uint64_t hash = 0xcbf29ce484222325U;
  const auto add = [&hash](std::string_view part) {
    constexpr std::uint64_t kPrime = 0x100000001b3U;
    for (const char c : part) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
    hash = (hash ^ 0xFFU) * kPrime;
  };
  add(tree);
  add(std::to_string(target.machines));
  add(std::to_string(target.workers_per_machine));
  for (const PlanTarget::Tensor& tensor : target.tensors) {
    add(tensor.name);
    add(tensor.shape.to_string());
  }
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; hash >>= 4U) text[i] = "0123456789abcdef"[hash & 0xFU];
  return text;
}

Result<Plan> load_plan(const std::string& file, const PlanTarget& target) {
  const auto json = read_json(file);
  if (!json) return tl::unexpected(json.error());
  return plan::plan_from_json(*json, file, target);
}

Result<Plan> parse_plan(std::string_view text, std::string_view origin, const PlanTarget& target) {
  try {
    return plan::plan_from_json(Json::parse(text), origin, target);
  } catch (const Json::parse_error& error) {
    const std::size_t end = std::min(error.byte, text.size());
    const auto line = 1 + std::ranges::count(text.substr(0, end), '\n');
    return fail(Code::kInvalidArgument, origin, ":", line, ": not JSON: ", error.what());
  }
}

}  // namespace gradpress
