#include "sync/site.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/vector.h"

namespace gradpress::sync {

namespace {

std::span<std::byte> bytes_of(const PlacedBlock& block, std::uint32_t buffer, Workspace& memory) {
  return memory.bytes(
      {.at = {.buffer = buffer, .offset = block.offset}, .bytes = block.layout->bytes()});
}

/// Payloads of `none` go with the last round: only then are they needed.
bool skips(const Codec& codec, const EncodeTask& task, std::size_t member) {
  return task.as_vector && !codec.traits().biased && task.blocks.front().layout->bound(member) == 0;
}

std::uint16_t nan_bits(DataType type) {
  return type == DataType::kFloat16 ? std::uint16_t{0x7E00} : std::uint16_t{0x7FC0};
}

void fill_nan(DataType type, std::span<std::byte> bytes) {
  if (size_of(type) == sizeof(float)) {
    std::ranges::fill(
        std::span(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)), kNan);
  } else {
    std::ranges::fill(std::span(reinterpret_cast<std::uint16_t*>(bytes.data()), bytes.size() / 2),
                      nan_bits(type));
  }
}

bool all_finite(DataType type, std::span<const std::byte> bytes) {
  if (size_of(type) == sizeof(float)) {
    return kernels::first_out_of_range(std::span(reinterpret_cast<const float*>(bytes.data()),
                                                 bytes.size() / sizeof(float)),
                                       std::numeric_limits<float>::infinity()) ==
           kernels::kAllInRange;
  }
  const unsigned exponent = type == DataType::kFloat16 ? 0x7C00U : 0x7F80U;
  bool finite = true;
  for (const std::uint16_t word :
       std::span(reinterpret_cast<const std::uint16_t*>(bytes.data()), bytes.size() / 2)) {
    finite = finite && (word & exponent) != exponent;
  }
  return finite;
}

}  // namespace

Result<Site> Site::make(std::span<const MemberCodec> members, const SiteOptions& options,
                        const EncodeTask* task,
                        std::span<const std::shared_ptr<TensorMemory>> memories) {
  Site site(members, options);
  std::size_t scratch = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const MemberCodec& member = members[i];
    const Codec& codec = site.codec(i);
    const Traits& traits = codec.traits();
    StateOptions state{.seed = options.seed, .tensor = member.tensor, .site = options.site};
    if (task == nullptr) {
      state.shape = Shape::flat(0);
      state.feedback = false;
    } else {
      const std::size_t elements = task->inputs[i].bytes / sizeof(float);
      state.shape = elements == member.shape.elements() ? member.shape : Shape::flat(elements);
      state.first_shard = task->first_shard;
      state.source = task->source;
      // What loses nothing has no residual, whatever the others beside it have.
      if (traits.biased || traits.supports_feedback) state.feedback = options.feedback;
      scratch = std::max(scratch, codec.encode_bound(state.shape, task->shards));
    }
    auto& known = memories[i]->states;
    if (known.size() <= options.site) known.resize(options.site + 1);
    std::shared_ptr<State>& kept = known[options.site];
    if (kept == nullptr) {
      auto made = codec.make_state(state);
      if (!made) {
        return fail(made.error().code(), "tensor ", member.name, ": ", made.error().message());
      }
      kept = std::move(*made);
    } else if (!(kept->shape() == state.shape)) {
      return fail(Code::kInvalidArgument, "tensor ", member.name, ": its two messages encode ",
                  kept->shape().to_string(), " and ", state.shape.to_string(),
                  ": wanted one option for both");
    }
    site.kept_.push_back({.state = kept, .encodes = task != nullptr});
  }
  if (task != nullptr) {
    const bool copies = task->shards > 1 && (task->framed || members.size() > 1);
    if (copies || task->as_vector) site.scratch_bytes_ = scratch;
    site.shard_bytes_.resize(task->shards);
  }
  return site;
}

codec::FrameKey Site::key(std::uint64_t step, const PlacedBlock& block) const {
  return {.message = options_.message,
          .step = step,
          .sender = block.sender,
          .shard = block.shard,
          .site = static_cast<std::uint16_t>(options_.site)};
}

Result<Health> Site::encode(const EncodeTask& task, std::size_t member, std::uint64_t step,
                            Workspace& memory) {
  const Codec& codec = this->codec(member);
  if (skips(codec, task, member)) return Health::kGood;
  const std::span<const float> input = memory.floats(task.inputs[member]);
  EncodeArgs args{.grad = input, .shards = task.shards, .step = step};
  if (codec.traits().rounds > 1) args.round = task.round;
  if (args.round > 0) {
    const std::span<const std::byte> sum = memory.bytes(task.reduced);
    if (!all_finite(options_.payload_type, sum)) return Health::kPoisoned;
    args.reduced = codec::payload_of(*task.reduced_layout, member, sum);
  }
  // `none` would pass on what the others beside it refuse.
  if (!codec.traits().biased && !codec.traits().supports_feedback &&
      kernels::first_out_of_range(input, kGradientLimit) != kernels::kAllInRange) {
    return Health::kPoisoned;
  }
  const auto written = encode_blocks(task, member, args, memory);
  if (!written) {
    if (written.error().code() == Code::kNonFinite) return Health::kPoisoned;
    return fail(written.error().code(), "Comp of ", members_[member].name, ": ",
                written.error().message());
  }
  if (task.as_vector && *written != task.blocks.front().layout->bound(member)) {
    return fail(Code::kInternal, "Comp of ", members_[member].name, ": made ", *written,
                " B, the plan has ", task.blocks.front().layout->bound(member), " B");
  }
  return Health::kGood;
}

Result<std::size_t> Site::encode_blocks(const EncodeTask& task, std::size_t member,
                                        const EncodeArgs& args, Workspace& memory) {
  const Codec& codec = this->codec(member);
  State& state = *kept_[member].state;
  if (task.shards == 1) {
    const PlacedBlock& block = task.blocks.front();
    const std::span<std::byte> frame = bytes_of(block, task.buffer, memory);
    const auto area = frame.subspan(block.layout->offset(member), block.layout->bound(member));
    // Where sizes alternate, this step's may be the smaller one, and encode wants room for both.
    const bool narrow = area.size() < codec.encode_bound(state.shape(), 1, args.round);
    const auto written = codec.encode(state, args, narrow ? memory.scratch() : area);
    if (written && narrow && *written <= area.size()) {
      std::memcpy(area.data(), memory.scratch().data(), *written);
    }
    if (written && task.framed) codec::set_used(*block.layout, member, *written, frame);
    return written;
  }
  if (!task.framed && members_.size() == 1) {
    // Bare shards of one member follow each other as encode writes them.
    return codec.encode(state, args,
                        memory.bytes({.at = {.buffer = task.buffer}, .bytes = task.bytes}),
                        shard_bytes_);
  }
  const auto written = codec.encode(state, args, memory.scratch(), shard_bytes_);
  if (!written) return written;
  std::size_t from = 0;
  for (std::size_t i = 0; i < task.blocks.size(); ++i) {
    const PlacedBlock& block = task.blocks[i];
    const std::span<std::byte> frame = bytes_of(block, task.buffer, memory);
    const std::size_t used = shard_bytes_[i];
    if (used > 0) {
      std::memcpy(frame.data() + block.layout->offset(member), memory.scratch().data() + from,
                  used);
    }
    if (task.framed) codec::set_used(*block.layout, member, used, frame);
    from += used;
  }
  return written;
}

void Site::seal(const EncodeTask& task, std::uint64_t step, Health health, Workspace& memory) {
  const bool poisoned = health == Health::kPoisoned;
  if (!task.framed) {
    if (poisoned) {
      fill_nan(options_.payload_type,
               memory.bytes({.at = {.buffer = task.buffer}, .bytes = task.bytes}));
    }
    return;
  }
  for (const PlacedBlock& block : task.blocks) {
    codec::seal_frame(*block.layout, key(step, block), poisoned,
                      bytes_of(block, task.buffer, memory));
  }
}

Result<Health> Site::check_blocks(const DecodeTask& task, std::uint64_t step,
                                  Workspace& memory) const {
  if (!task.framed) {
    // Two-byte floats are looked at while they are decoded.
    if (size_of(options_.payload_type) != sizeof(float)) return Health::kGood;
    const bool finite = all_finite(
        options_.payload_type, memory.bytes({.at = {.buffer = task.buffer}, .bytes = task.bytes}));
    return finite ? Health::kGood : Health::kPoisoned;
  }
  Health health = Health::kGood;
  for (const PlacedBlock& block : task.blocks) {
    const auto state =
        codec::open_frame(*block.layout, key(step, block), bytes_of(block, task.buffer, memory));
    if (!state) {
      return fail(state.error().code(), "Decomp of ", members_.front().name,
                  members_.size() > 1 ? " and the tensors with it: " : ": ",
                  state.error().message());
    }
    if (*state == codec::FrameState::kPoisoned) health = Health::kPoisoned;
  }
  return health;
}

Result<Health> Site::decode(const DecodeTask& task, std::uint64_t step, Workspace& memory) {
  const auto health = check_blocks(task, step, memory);
  if (!health || *health == Health::kPoisoned) return health;
  for (std::size_t member = 0; member < members_.size(); ++member) {
    const Status status = decode_member(task, member, step, memory);
    if (status.is_ok()) continue;
    // A bare payload has the right length always: its sum has left the type's range.
    if (!task.framed && status.code() == Code::kCorruptPayload) return Health::kPoisoned;
    return tl::unexpected(status);
  }
  return Health::kGood;
}

Status Site::decode_member(const DecodeTask& task, std::size_t member, std::uint64_t step,
                           Workspace& memory) {
  const Codec& codec = this->codec(member);
  State& state = *kept_[member].state;
  const bool votes = codec.traits().combine == Combine::kVote;
  const float weight = task.scales && !votes ? 1.0F / static_cast<float>(options_.workers) : 1.0F;
  const std::span<float> output = memory.floats(task.outputs[member]);
  const std::uint64_t begin = task.partition->piece(member, task.first).begin;
  ShardRange piece;
  std::span<float> part;
  for (std::size_t i = 0; i < task.blocks.size(); ++i) {
    const PlacedBlock& block = task.blocks[i];
    const bool first = i == 0 || task.blocks[i - 1].shard != block.shard;
    if (first) {
      piece = task.partition->piece(member, block.shard);
      part = output.subspan(piece.begin - begin, piece.count);
    }
    const auto payload =
        codec::payload_of(*block.layout, member, bytes_of(block, task.buffer, memory));
    const Status status = codec.decode(state,
                                       {.payload = payload,
                                        .shard = block.shard,
                                        .step = step,
                                        .weight = weight,
                                        .overwrite = first,
                                        // One of the workers' first payloads: it is in the sum of
                                        // each element once, on whatever way that is formed.
                                        .casting = votes && options_.site == 0 && block.sender == 0,
                                        .begin = piece.begin},
                                       part);
    if (!status.is_ok()) {
      return Status::error(status.code(), "Decomp of ", members_[member].name, ", sent by rank ",
                           block.sender, ": ", status.message());
    }
    const bool last = i + 1 == task.blocks.size() || task.blocks[i + 1].shard != block.shard;
    if (!last || !task.scales || !(votes || task.as_vector)) continue;
    const Status finished = codec.finish(state, options_.workers, part);
    if (!finished.is_ok()) {
      return Status::error(finished.code(), "Decomp of ", members_[member].name, ": ",
                           finished.message());
    }
  }
  return {};
}

void Site::commit() {
  for (const Kept& kept : kept_) kept.state->commit();
}

void Site::rewind() {
  for (const Kept& kept : kept_) kept.state->rewind();
}

bool Site::has_feedback(std::size_t member) const {
  return kept_[member].encodes && kept_[member].state->has_feedback();
}

void Site::add_residual(const EncodeTask& task, std::size_t member, std::span<float> tensor) const {
  if (!has_feedback(member)) return;
  std::vector<float> residual(task.inputs[member].bytes / sizeof(float));
  kept_[member].state->materialise(residual);
  kernels::add(tensor.subspan(task.begins[member], residual.size()), residual);
}

Status Site::load_residual(std::size_t member, std::span<const float> residual) {
  return kept_[member].state->load(residual);
}

void Site::clear_residual(std::size_t member) {
  if (!has_feedback(member)) return;
  const std::vector<float> zeros(kept_[member].state->shape().elements());
  (void)load_residual(member, zeros);
}

void Site::scale_residuals(float factor) {
  for (Kept& kept : kept_) {
    if (kept.encodes) kept.state->scale(factor);
  }
}

codec::MomentumState* Site::momentum(std::size_t member) const {
  return kept_[member].encodes ? dynamic_cast<codec::MomentumState*>(kept_[member].state.get())
                               : nullptr;
}

void Site::save(std::size_t member, ByteWriter& out) const {
  const State& state = *kept_[member].state;
  std::vector<float> residual;
  if (has_feedback(member)) {
    residual.resize(state.shape().elements());
    state.materialise(residual);
  }
  out.put_floats(residual);
  out.put_bytes(state.save_extras());
}

Status Site::load(std::size_t member, ByteReader& in) {
  State& state = *kept_[member].state;
  const std::vector<float> residual = in.floats();
  const std::span<const std::byte> extras = in.bytes();
  if (!in.status()) return in.status();
  Status status = state.load_extras(extras);
  if (status && has_feedback(member)) status = state.load(residual);
  if (status) return {};
  return Status::error(Code::kCorruptPayload, "state of ", members_[member].name, ": ",
                       status.message());
}

}  // namespace gradpress::sync
