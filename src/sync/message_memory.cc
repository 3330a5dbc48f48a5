#include <algorithm>
#include <utility>

#include "kernels/vector.h"
#include "sync/message_impl.h"

namespace gradpress::sync {

void Message::Impl::find_memories(Memories* memories) {
  for (const MemberCodec& member : described_.members) {
    std::shared_ptr<TensorMemory> memory;
    if (memories != nullptr) memory = (*memories)[member.tensor];
    if (memory == nullptr) memory = std::make_shared<TensorMemory>();
    if (memories != nullptr) (*memories)[member.tensor] = memory;
    memories_.push_back(std::move(memory));
  }
}

void Message::Impl::copy_residual(std::size_t member, std::span<float> out) const {
  std::ranges::fill(out, 0.0F);
  if (!memories_[member]->pending.empty()) kernels::add(out, memories_[member]->pending.span());
  for (unsigned site = 0; site < sites_.size(); ++site) {
    const EncodeTask* task = first_encode(routes_[0], site);
    if (task != nullptr && task->counted) sites_[site].add_residual(*task, member, out);
  }
}

void Message::Impl::take_residual(std::size_t member, std::span<float> out) {
  copy_residual(member, out);
  memories_[member]->pending = Buffer<float>();
  for (Site& site : sites_) site.clear_residual(member);
}

Status Message::Impl::check_residual(std::size_t member, std::span<const float> residual) const {
  const MemberCodec& what = described_.members[member];
  if (residual.size() != what.shape.elements()) {
    return Status::error(Code::kInvalidArgument, "residual of ", what.name, ": wanted ",
                         what.shape.elements(), " elements, got ", residual.size());
  }
  if (const std::size_t at = kernels::first_out_of_range(residual, kGradientLimit);
      at != kernels::kAllInRange) {
    return Status::error(Code::kNonFinite, "residual of ", what.name, ": element ", at, " is ",
                         residual[at], ", wanted a finite value below ", kGradientLimit);
  }
  return {};
}

Status Message::Impl::give_residual(std::size_t member, std::span<const float> residual) {
  if (Status status = check_residual(member, residual); !status) return status;
  if (!keeps_residual(member)) return add_to_next(member, residual);
  std::vector<float> sum(residual.begin(), residual.end());
  sites_.front().add_residual(*first_encode(routes_[0], 0), member, sum);
  return sites_.front().load_residual(member, sum);
}

bool Message::Impl::take_next(std::size_t member, std::span<float> out) {
  Buffer<float>& pending = memories_[member]->pending;
  if (pending.empty()) return false;
  std::ranges::copy(pending.span(), out.begin());
  pending = Buffer<float>();
  return true;
}

bool Message::Impl::keeps_residual(std::size_t member) const {
  // A state that holds one piece, or is one of several replicas, cannot take a share of its own.
  const EncodeTask* first = sites_.empty() ? nullptr : first_encode(routes_[0], 0);
  return first != nullptr && first->inputs[member].at.in_gradients() &&
         sites_.front().has_feedback(member);
}

Status Message::Impl::add_to_next(std::size_t member, std::span<const float> gradient) {
  if (Status status = check_residual(member, gradient); !status) return status;
  Buffer<float>& pending = memories_[member]->pending;
  if (pending.empty()) pending = Buffer<float>(gradient.size());
  kernels::add(pending.span(), gradient);
  return {};
}

void Message::Impl::scale_residuals(float factor) {
  for (const auto& memory : memories_) kernels::scale(memory->pending.span(), factor);
  for (Site& site : sites_) site.scale_residuals(factor);
}

bool Message::Impl::has_momentum(std::size_t member) const {
  return described_.members[member].first != described_.members[member].codec;
}

void Message::Impl::copy_momentum(std::size_t member, std::span<float> out) const {
  std::ranges::fill(out, 0.0F);
  const EncodeTask* first = sites_.empty() ? nullptr : first_encode(routes_[0], 0);
  if (first == nullptr || !first->counted) return;
  if (const codec::MomentumState* state = sites_.front().momentum(member)) {
    std::ranges::copy(state->momentum(),
                      out.begin() + static_cast<std::ptrdiff_t>(first->begins[member]));
  }
}

Status Message::Impl::load_momentum(std::size_t member, std::span<const float> momentum) {
  const EncodeTask* first = sites_.empty() ? nullptr : first_encode(routes_[0], 0);
  codec::MomentumState* state = first == nullptr ? nullptr : sites_.front().momentum(member);
  if (state == nullptr) return {};
  return state->load_momentum(momentum.subspan(first->begins[member], state->momentum().size()));
}

void Message::Impl::save(std::size_t member, ByteWriter& out) const {
  out.put(static_cast<std::uint32_t>(memories_[member]->parity));
  out.put_floats(memories_[member]->pending.span());
  out.put(static_cast<std::uint32_t>(sites_.size()));
  for (unsigned site = 0; site < sites_.size(); ++site) {
    // Where its residual lies in the tensor, and whether this rank's copy counts: what
    // add_saved_residual() needs without the message.
    const EncodeTask* task = first_encode(routes_[0], site);
    const bool counted = task != nullptr && task->counted;
    out.put(static_cast<std::uint32_t>(counted ? 1 : 0));
    out.put(counted ? std::uint64_t{task->begins[member]} : std::uint64_t{0});
    sites_[site].save(member, out);
  }
}

Status Message::Impl::load(std::size_t member, ByteReader& in) {
  TensorMemory& memory = *memories_[member];
  memory.parity = in.get<std::uint32_t>() % 2;
  memory.pending = Buffer<float>();
  const std::vector<float> pending = in.floats();
  if (!in.status()) return in.status();
  if (!pending.empty()) {
    if (Status status = add_to_next(member, pending); !status) return status;
  }
  if (in.get<std::uint32_t>() != sites_.size()) {
    return Status::error(Code::kCorruptPayload, "state of ", described_.members[member].name,
                         ": wanted that of ", sites_.size(), " encode sites");
  }
  for (Site& site : sites_) {
    (void)in.get<std::uint32_t>();
    (void)in.get<std::uint64_t>();
    if (Status status = site.load(member, in); !status) return status;
  }
  return {};
}

Status Message::add_saved_residual(ByteReader& in, std::span<float> out) {
  (void)in.get<std::uint32_t>();
  const auto add = [&](std::uint64_t begin, const std::vector<float>& part) {
    if (begin > out.size() || part.size() > out.size() - begin) {
      return Status::error(Code::kCorruptPayload, "saved residual: elements ", begin, " to ",
                           begin + part.size(), " of a tensor of ", out.size());
    }
    kernels::add(out.subspan(begin, part.size()), part);
    return Status();
  };
  Status status = add(0, in.floats());
  const auto sites = in.get<std::uint32_t>();
  for (std::uint32_t site = 0; status && in.status() && site < sites; ++site) {
    const bool counted = in.get<std::uint32_t>() != 0;
    const auto begin = in.get<std::uint64_t>();
    const std::vector<float> part = in.floats();
    (void)in.bytes();
    if (counted) status = add(begin, part);
  }
  return status ? in.status() : status;
}

void Message::take_residual(std::size_t member, std::span<float> out) {
  impl_->take_residual(member, out);
}
void Message::copy_residual(std::size_t member, std::span<float> out) const {
  impl_->copy_residual(member, out);
}
Status Message::give_residual(std::size_t member, std::span<const float> residual) {
  return impl_->give_residual(member, residual);
}
bool Message::take_next(std::size_t member, std::span<float> out) {
  return impl_->take_next(member, out);
}
bool Message::keeps_residual(std::size_t member) const { return impl_->keeps_residual(member); }
Status Message::add_to_next(std::size_t member, std::span<const float> gradient) {
  return impl_->add_to_next(member, gradient);
}
void Message::scale_residuals(float factor) { impl_->scale_residuals(factor); }

bool Message::has_momentum(std::size_t member) const { return impl_->has_momentum(member); }
std::uint64_t Message::summed_workers() const { return impl_->summed_workers(); }
void Message::copy_momentum(std::size_t member, std::span<float> out) const {
  impl_->copy_momentum(member, out);
}
Status Message::load_momentum(std::size_t member, std::span<const float> momentum) {
  return impl_->load_momentum(member, momentum);
}

void Message::save(std::size_t member, ByteWriter& out) const { impl_->save(member, out); }
Status Message::load(std::size_t member, ByteReader& in) { return impl_->load(member, in); }

}  // namespace gradpress::sync
