#include "sync/message.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/buffer.h"
#include "codec/frame.h"
#include "kernels/vector.h"
#include "sync/message_impl.h"

namespace gradpress::sync {

namespace {

using plan::ActionKind;

SentBytes& operator+=(SentBytes& all, const SentBytes& more) {
  all.intra += more.intra;
  all.inter += more.inter;
  return all;
}

bool is_one_collective(const plan::Option& option) {
  return option.is_raw() && option.actions().size() == 1;
}

}  // namespace

Result<std::unique_ptr<Message::Impl>> Message::Impl::make(
    const MessageSpec& spec, Fabric& fabric, const MessageSurroundings& surroundings) {
  auto described = describe(spec, fabric.topology());
  if (!described) return tl::unexpected(described.error());
  std::unique_ptr<Impl> impl(new Impl(spec, fabric, std::move(*described)));
  impl->find_memories(surroundings.memories);
  impl->make_tables(surroundings);
  if (Status status = impl->make_sites(); !status) return tl::unexpected(status);
  // What others share is made when all have said how much they want.
  if (!surroundings.store) impl->memory_->reserve();
  return impl;
}

Route Message::Impl::make_route_for(std::span<const unsigned> parities) const {
  std::vector<std::uint64_t> elements;
  std::vector<const Codec*> codecs;
  for (const MemberCodec& member : described_.members) {
    elements.push_back(member.shape.elements());
    codecs.push_back(member.codec);
  }
  std::vector<std::vector<std::size_t>> vector_bytes;
  if (described_.low_rank) {
    vector_bytes = described_.vector_bytes.front();
    for (std::size_t round = 0; round < vector_bytes.size() && described_.alternates; ++round) {
      for (std::size_t i = 0; i < parities.size(); ++i) {
        vector_bytes[round][i] = described_.vector_bytes[parities[i]][round][i];
      }
    }
  }
  return make_route({.option = spec_.option,
                     .topology = fabric_.topology(),
                     .rank = fabric_.rank(),
                     .elements = elements,
                     .codecs = codecs,
                     .vector_bytes = vector_bytes,
                     .payload_type = described_.payload_type});
}

void Message::Impl::make_tables(const MessageSurroundings& surroundings) {
  const std::size_t members = described_.members.size();
  std::vector<std::size_t> bytes;
  for (unsigned parity = 0; parity < (described_.alternates ? 2U : 1U); ++parity) {
    routes_.push_back(make_route_for(std::vector<unsigned>(members, parity)));
    const auto& more = routes_.back().buffer_bytes;
    bytes.resize(more.size());
    std::ranges::transform(bytes, more, bytes.begin(),
                           [](std::size_t a, std::size_t b) { return std::max(a, b); });
  }
  if (surroundings.pool && is_one_collective(spec_.option) && bytes.size() == 1) {
    memory_.emplace(surroundings.pool, bytes.front(), members);
  } else {
    memory_.emplace(surroundings.store ? surroundings.store : std::make_shared<Store>(), bytes,
                    members);
  }
  for (const plan::Action& action : spec_.option.actions()) {
    stages_.push_back(
        {.action = action,
         .link = action.kind == ActionKind::kComm ? fabric_.link(action.phase) : Link::kInter,
         .first_codec = stages_.empty() && action.kind == ActionKind::kComp});
  }
  bound_.resize(members);
  encoded_.resize(members);
}

Status Message::Impl::choose_route() {
  if (!described_.alternates) return {};
  route_ = memories_.front()->parity;
  for (std::size_t i = 1; i < memories_.size(); ++i) {
    if (memories_[i]->parity == route_) continue;
    return Status::error(Code::kInvalidArgument, "message of ", described_.tensor, ": ",
                         described_.members[i].name, " is a step ahead or behind, by its parity ",
                         memories_[i]->parity, ": wanted members that took the same steps");
  }
  return {};
}

const EncodeTask* Message::Impl::first_encode(const Route& route, unsigned site) const {
  for (const Task& task : route.tasks) {
    const auto* encode = std::get_if<EncodeTask>(&task);
    if (encode != nullptr && encode->site == site && encode->round == 0) return encode;
  }
  return nullptr;
}

Status Message::Impl::make_sites() {
  const unsigned rounds = described_.low_rank ? described_.vector_bytes[0].size() : 1;
  const unsigned sites = spec_.option.encodes() / std::max(1U, rounds);
  for (unsigned site = 0; site < sites; ++site) {
    auto made = Site::make(
        described_.members,
        {.site = site,
         .seed = spec_.seed,
         .feedback = spec_.feedback,
         .workers = fabric_.topology().workers(),
         .payload_type = described_.payload_type,
         .message = codec::hash_of(std::as_bytes(std::span<const char>(described_.text)))},
        first_encode(routes_[0], site), memories_);
    if (!made) return made.error();
    sites_.push_back(std::move(*made));
    memory_->add_scratch(sites_.back().scratch_bytes());
  }
  return {};
}

Status Message::Impl::begin(std::uint64_t step) {
  if (in_step_ && started_) {
    return Status::error(Code::kInvalidArgument, "message of ", described_.tensor, ": step ", step,
                         " was begun while stage ", next_, " of step ", step_,
                         " is under way: wait() for it first");
  }
  if (in_step_) (void)failed({});
  ended_ = false;
  for (Site& site : sites_) site.commit();
  for (const auto& memory : memories_) memory->spent = Buffer<float>();
  if (Status status = choose_route(); !status) return status;
  step_ = step;
  memory_->reserve();
  in_step_ = true;
  poisoned_ = false;
  next_ = 0;
  started_ = false;
  std::fill(bound_.begin(), bound_.end(), false);
  std::fill(encoded_.begin(), encoded_.end(), false);
  return {};
}

Status Message::Impl::check_gradient(std::size_t member, std::span<const float> gradient) const {
  const auto& members = described_.members;
  if (member >= members.size()) {
    return Status::error(Code::kInvalidArgument, "message of ", described_.tensor, ": member ",
                         member, " of ", members.size());
  }
  if (gradient.size() == members[member].shape.elements()) return {};
  return Status::error(Code::kInvalidArgument, "gradient of ", members[member].name, ": wanted ",
                       members[member].shape.elements(), " elements, got ", gradient.size());
}

Status Message::Impl::bind(std::size_t member, std::span<float> gradient) {
  Status status = check_gradient(member, gradient);
  if (!status.is_ok()) return status;
  if (!in_step_ || bound_[member]) {
    return Status::error(Code::kInvalidArgument, "gradient of ", described_.members[member].name,
                         in_step_ ? ": was bound already in this step" : ": begin() is due first");
  }
  memory_->gradients()[member] = gradient;
  bound_[member] = true;
  return {};
}

Status Message::Impl::begin(std::uint64_t step, std::span<const std::span<float>> gradients) {
  if (gradients.size() != bound_.size()) {
    return Status::error(Code::kInvalidArgument, "message of ", described_.tensor, ": wanted ",
                         bound_.size(), " gradients, got ", gradients.size());
  }
  Status status;
  for (std::size_t i = 0; i < gradients.size() && status.is_ok(); ++i) {
    status = check_gradient(i, gradients[i]);
  }
  if (status.is_ok()) status = begin(step);
  for (std::size_t i = 0; i < gradients.size() && status.is_ok(); ++i) {
    status = bind(i, gradients[i]);
  }
  return status;
}

Status Message::Impl::check_bound(std::size_t member) const {
  if (bound_[member]) return {};
  return Status::error(Code::kInvalidArgument, "gradient of ", described_.members[member].name,
                       ": is needed now, and bind() has not been called in this step");
}

Status Message::Impl::check_turn(std::size_t stage, ActionKind first, ActionKind second) const {
  if (!in_step_ || stage != next_ || stage >= stages_.size()) {
    return Status::error(Code::kInvalidArgument, "message of ", described_.tensor, ": stage ",
                         stage, " was asked for, ",
                         in_step_ ? "the next one is " : "begin() is due, not ",
                         in_step_ ? next_ : stage);
  }
  const ActionKind kind = stages_[stage].action.kind;
  if (kind == first || kind == second) return {};
  return Status::error(Code::kInvalidArgument, "message of ", described_.tensor, ": stage ", stage,
                       " is ", plan::to_text(stages_[stage].action));
}

/// A failure ends the step: nothing of it stays in the states.
Status Message::Impl::failed(Status status) {
  if (in_step_) {
    for (Site& site : sites_) site.rewind();
  }
  in_step_ = false;
  return status;
}

void Message::Impl::add_pending(std::size_t member) {
  const Buffer<float>& pending = memories_[member]->pending;
  if (!pending.empty()) kernels::add(memory_->gradients()[member], pending.span());
}

Status Message::Impl::encode_member(std::size_t stage, std::size_t member) {
  Status status = check_turn(stage, ActionKind::kComp, ActionKind::kComp);
  if (!status.is_ok()) return status;
  if (member >= encoded_.size() || encoded_[member]) {
    return Status::error(Code::kInvalidArgument, "message of ", described_.tensor, ": member ",
                         member, " of ", encoded_.size(), " is not to be encoded");
  }
  status = check_bound(member);
  if (!status.is_ok()) return status;
  encoded_[member] = true;
  const auto* task = std::get_if<EncodeTask>(&route().tasks[stage]);
  if (stage == 0) add_pending(member);
  if (task == nullptr || poisoned_) return {};
  const auto health = sites_[task->site].encode(*task, member, step_, *memory_);
  if (!health) return failed(health.error());
  if (*health == Health::kPoisoned) poisoned_ = true;
  return {};
}

Status Message::Impl::run_codec(std::size_t stage) {
  Status status = check_turn(stage, ActionKind::kComp, ActionKind::kDecomp);
  if (!status.is_ok()) return status;
  const Task& task = route().tasks[stage];
  if (const auto* decode_task = std::get_if<DecodeTask>(&task)) {
    status = decode(*decode_task);
  } else if (stages_[stage].action.kind == ActionKind::kComp) {
    for (std::size_t member = 0; member < encoded_.size() && status.is_ok(); ++member) {
      if (!encoded_[member]) status = encode_member(stage, member);
    }
    const auto* encode_task = std::get_if<EncodeTask>(&task);
    if (status.is_ok() && encode_task != nullptr) {
      sites_[encode_task->site].seal(*encode_task, step_,
                                     poisoned_ ? Health::kPoisoned : Health::kGood, *memory_);
    }
    std::fill(encoded_.begin(), encoded_.end(), false);
  }
  if (!status.is_ok()) return status;
  ++next_;
  return {};
}

Status Message::Impl::decode(const DecodeTask& task) {
  if (!poisoned_) {
    const auto health = sites_[task.site].decode(task, step_, *memory_);
    if (!health) return failed(health.error());
    if (*health == Health::kPoisoned) poisoned_ = true;
  }
  if (!poisoned_) return {};
  for (const Area& output : task.outputs) std::ranges::fill(memory_->floats(output), kNan);
  return {};
}

Status Message::Impl::start(std::size_t stage) {
  Status status = check_turn(stage, ActionKind::kComm, ActionKind::kComm);
  if (!status.is_ok()) return status;
  if (started_) {
    return Status::error(Code::kInvalidArgument, "message of ", described_.tensor, ": stage ",
                         stage, " was started twice");
  }
  if (stage == 0) {
    for (std::size_t member = 0; member < bound_.size() && status.is_ok(); ++member) {
      status = check_bound(member);
    }
    if (!status.is_ok()) return status;
    for (std::size_t member = 0; member < bound_.size(); ++member) add_pending(member);
  }
  started_ = true;
  const auto* task = std::get_if<CommTask>(&route().tasks[stage]);
  if (task == nullptr) return {};
  memory_->hold();
  memory_->copy(task->before);
  const auto ticket = fabric_.group(task->phase)
                          .start({.kind = task->kind,
                                  .type = task->type,
                                  .in = memory_->bytes(task->in),
                                  .out = memory_->bytes(task->out),
                                  .counts = task->counts,
                                  .receive_counts = task->receive_counts,
                                  .tensor = described_.tensor});
  if (!ticket) return failed(ticket.error());
  ticket_ = *ticket;
  return {};
}

Status Message::Impl::wait(std::size_t stage) {
  Status status = check_turn(stage, ActionKind::kComm, ActionKind::kComm);
  if (!status.is_ok()) return status;
  if (!started_) {
    return Status::error(Code::kInvalidArgument, "message of ", described_.tensor, ": stage ",
                         stage, " was not started");
  }
  if (const auto* task = std::get_if<CommTask>(&route().tasks[stage])) {
    status = fabric_.group(task->phase).wait(ticket_);
    if (!status.is_ok()) return failed(status);
    finish_comm(*task);
  }
  started_ = false;
  ++next_;
  return {};
}

void Message::Impl::finish_comm(const CommTask& task) {
  poisoned_ = poisoned_ || std::ranges::any_of(task.probes, [this](const Spot& spot) {
                const float value = memory_->value(spot);
                return value != value;
              });
  const float share = 1.0F / static_cast<float>(fabric_.topology().workers());
  // What nobody reads but the gradients is scaled on its way there.
  if (!poisoned_ && task.scales && task.last && !task.after.empty() && !described_.votes &&
      !task.out.at.in_gradients()) {
    poisoned_ = !memory_->copy_scaled(task.after, share);
    return;
  }
  const std::span<float> out =
      task.type == DataType::kFloat32 ? memory_->floats(task.out) : std::span<float>();
  if (!poisoned_ && task.scales && described_.votes) kernels::take_signs(out);
  if (!poisoned_ && task.scales && !described_.votes) {
    poisoned_ = !kernels::scale_into(out, share, out);
  }
  // Whoever gets a piece of it learns of it by any of its numbers.
  if (poisoned_ && (task.scales || !task.probes.empty())) std::ranges::fill(out, kNan);
  // What a poisoned step would write to the gradients is NaN, and end() writes that.
  if (task.last && poisoned_) return;
  memory_->copy(task.after);
}

bool Message::Impl::done(std::size_t stage) const {
  if (stage != next_) return stage < next_;
  if (!started_ || stage >= stages_.size()) return false;
  const auto* task = std::get_if<CommTask>(&route().tasks[stage]);
  return task == nullptr || fabric_.group(task->phase).done(ticket_);
}

Result<Outcome> Message::Impl::end() {
  if (!in_step_ || next_ != stages_.size()) {
    return fail(Code::kInvalidArgument, "message of ", described_.tensor, ": ended after ",
                in_step_ ? next_ : 0, " of ", stages_.size(), " stages");
  }
  in_step_ = false;
  memory_->release();
  if (poisoned_) {
    for (Site& site : sites_) site.rewind();
    for (const std::span<float> gradient : memory_->gradients()) std::ranges::fill(gradient, kNan);
    return Outcome::kNonFinite;
  }
  for (const auto& memory : memories_) {
    memory->spent = std::exchange(memory->pending, Buffer<float>());
    memory->parity = 1 - memory->parity;
  }
  ended_ = true;
  return Outcome::kDone;
}

void Message::Impl::rewind() {
  if (!std::exchange(ended_, false)) return;
  for (Site& site : sites_) site.rewind();
  for (const auto& memory : memories_) {
    memory->pending = std::exchange(memory->spent, Buffer<float>());
    memory->parity = 1 - memory->parity;
  }
}

SentBytes Message::Impl::promised(std::uint64_t step, std::size_t stage) const {
  if (stage >= stages_.size()) return {};
  // Steps alternate as long as they end well; counted from the one that was begun last.
  const bool odd = described_.alternates && (step - step_) % 2 == 1;
  const Route& route = routes_[odd ? route_ ^ 1U : route_];
  const auto* task = std::get_if<CommTask>(&route.tasks[stage]);
  return task == nullptr ? SentBytes{} : task->sent;
}

Message::Message(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Message::~Message() = default;

Result<std::unique_ptr<Message>> Message::make(const MessageSpec& spec, Fabric& fabric,
                                               const MessageSurroundings& surroundings) {
  auto impl = Impl::make(spec, fabric, surroundings);
  if (!impl) return tl::unexpected(impl.error());
  return std::unique_ptr<Message>(new Message(std::move(*impl)));
}

const MessageSpec& Message::spec() const { return impl_->spec(); }
std::string Message::description() const { return impl_->description(); }
std::span<const Stage> Message::stages() const { return impl_->stages(); }

Status Message::begin(std::uint64_t step, std::span<const std::span<float>> gradients) {
  return impl_->begin(step, gradients);
}
Status Message::begin(std::uint64_t step) { return impl_->begin(step); }
Status Message::bind(std::size_t member, std::span<float> gradient) {
  return impl_->bind(member, gradient);
}
Status Message::run_codec(std::size_t stage, std::size_t member) {
  return impl_->encode_member(stage, member);
}
Status Message::run_codec(std::size_t stage) { return impl_->run_codec(stage); }
Status Message::start(std::size_t stage) { return impl_->start(stage); }
Status Message::wait(std::size_t stage) { return impl_->wait(stage); }
bool Message::done(std::size_t stage) const { return impl_->done(stage); }
Result<Outcome> Message::end() { return impl_->end(); }
void Message::rewind() { impl_->rewind(); }

Result<Outcome> Message::run(std::uint64_t step, std::span<const std::span<float>> gradients) {
  Status status = begin(step, gradients);
  for (std::size_t stage = 0; stage < stages().size() && status.is_ok(); ++stage) {
    if (stages()[stage].action.kind == ActionKind::kComm) {
      status = start(stage);
      if (status.is_ok()) status = wait(stage);
    } else {
      status = run_codec(stage);
    }
  }
  if (!status.is_ok()) return tl::unexpected(status);
  return end();
}

SentBytes Message::promised_bytes(std::uint64_t step) const {
  SentBytes all;
  for (std::size_t stage = 0; stage < stages().size(); ++stage) {
    all += impl_->promised(step, stage);
  }
  return all;
}
SentBytes Message::promised_bytes(std::uint64_t step, std::size_t stage) const {
  return impl_->promised(step, stage);
}

}  // namespace gradpress::sync
