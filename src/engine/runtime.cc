#include "engine/runtime.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <utility>

namespace gradpress::engine {

namespace {

constexpr double us(Time time) { return std::chrono::duration<double, std::micro>(time).count(); }

bool is_codec(const sync::Stage& stage) { return stage.action.kind != plan::ActionKind::kComm; }

SentBytes minus(const SentBytes& a, const SentBytes& b) {
  return {.intra = a.intra - b.intra, .inter = a.inter - b.inter};
}

}  // namespace

void RuntimeShared::reserve() {
  pool->reserve(kInFlight);
  for (const auto& store : stores) store->reserve();
}

std::uint64_t RuntimeShared::bytes() const {
  std::uint64_t all = pool->made_bytes();
  for (const auto& store : stores) all += store->size();
  return all;
}

Runtime::Runtime(Program program, sync::Fabric& fabric, const RuntimeOptions& options, Clock& clock)
    : program_(std::move(program)),
      fabric_(fabric),
      options_(options),
      clock_(clock),
      counts_(options.count_messages) {}

Result<std::unique_ptr<Runtime>> Runtime::make(Program program, sync::Fabric& fabric,
                                               const RuntimeOptions& options, Clock& clock,
                                               RuntimeShared* shared) {
  if (Status status = check_order(program, fabric.topology()); !status) {
    return tl::unexpected(status);
  }
  std::unique_ptr<Runtime> runtime(new Runtime(std::move(program), fabric, options, clock));
  RuntimeShared own;
  Status status = runtime->prepare(shared != nullptr ? *shared : own);
  if (!status) return tl::unexpected(status);
  if (shared == nullptr) own.reserve();
  return runtime;
}

Status Runtime::prepare(RuntimeShared& shared) {
  const StorePlan stores = plan_stores(program_, fabric_.topology(), !options_.pipelining);
  while (shared.stores.size() < stores.stores) {
    shared.stores.push_back(std::make_shared<sync::Store>());
  }
  std::size_t tensors = 0;
  for (const sync::MessageSpec& spec : program_.messages) tensors += spec.members.size();
  where_.resize(tensors);
  std::vector<bool> seen(tensors, false);
  std::size_t most_spans = 0;
  bool host = false;
  for (std::uint32_t i = 0; i < program_.messages.size(); ++i) {
    const sync::MessageSpec& spec = program_.messages[i];
    const std::uint32_t store = stores.of_message[i];
    auto message =
        sync::Message::make(spec, fabric_,
                            {.memories = &shared.memories,
                             .pool = shared.pool,
                             .store = store == kNoStore ? nullptr : shared.stores[store]});
    if (!message) return message.error();
    for (std::uint32_t k = 0; k < spec.members.size(); ++k) {
      const std::uint64_t tensor = spec.members[k].tensor;
      if (tensor >= tensors || seen[tensor]) {
        return Status::error(Code::kInvalidArgument, "tensor ", spec.members[k].name, ": number ",
                             tensor, tensor < tensors ? " is used twice" : " is beyond the last");
      }
      seen[tensor] = true;
      where_[tensor].message = i;
      where_[tensor].member = k;
    }
    const auto stages = (*message)->stages();
    most_spans += stages.size() + spec.members.size();
    host = host || std::ranges::any_of(stages, [](const sync::Stage& stage) {
             return is_codec(stage) && stage.action.place == plan::Place::kHost;
           });
    journeys_.push_back(std::make_unique<Journey>());
    journeys_.back()->message = std::move(*message);
    journeys_.back()->waits_for_store = stores.before[i] != kNoMessage;
    if (journeys_.back()->waits_for_store) journeys_.back()->parked.reserve(spec.members.size());
  }
  for (std::uint32_t i = 0; i < journeys_.size(); ++i) {
    if (stores.before[i] != kNoMessage) journeys_[stores.before[i]]->after = i;
  }
  if (options_.record_spans) {
    const MutexLock lock(mutex_);
    spans_.reserve(most_spans);
    last_spans_.reserve(most_spans);
  }
  if (!options_.pipelining) return {};
  if (host) threads_.emplace_back([this] { guard([this] { host_lane(); }); });
  for (const sync::Link link : {sync::Link::kIntra, sync::Link::kInter}) {
    if (!program_.order[static_cast<std::size_t>(link)].empty()) {
      threads_.emplace_back([this, link] { guard([&] { link_lane(link); }); });
    }
  }
  return {};
}

template <class Lane>
void Runtime::guard(const Lane& lane) {
  try {
    lane();
  } catch (const std::exception& error) {
    fail_with(
        Status::error(Code::kInternal, "engine: a lane ended by an exception: ", error.what()));
  }
}

Runtime::~Runtime() { stop_lanes(); }

std::vector<std::unique_ptr<sync::Message>> Runtime::dissolve() {
  stop_lanes();
  std::vector<std::unique_ptr<sync::Message>> messages;
  for (const auto& journey : journeys_) messages.push_back(std::move(journey->message));
  return messages;
}

void Runtime::stop_lanes() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    host_changed_.notify_all();
    for (CondVar& changed : link_changed_) changed.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

std::pair<std::uint32_t, std::uint32_t> Runtime::place_of(std::uint32_t tensor) const {
  return {where_[tensor].message, where_[tensor].member};
}

bool Runtime::takes_turn(const sync::Stage& stage) const {
  return !is_codec(stage) && fabric_.group(stage.action.phase).size() > 1;
}

Status Runtime::begin(std::uint64_t step) {
  if (Status status = failure(); !status) return status;
  if (in_step_) {
    return Status::error(Code::kInvalidArgument, "engine: step ", step_,
                         " has not been waited for");
  }
  step_ = step;
  in_step_ = true;
  sent_before_ = fabric_.sent_bytes();
  for (Where& where : where_) where.is_ready = false;
  for (const auto& journey : journeys_) {
    if (Status status = journey->message->begin(step); !status) return status;
    journey->missing.store(static_cast<std::uint32_t>(journey->message->spec().members.size()),
                           std::memory_order_relaxed);
    journey->has_store.store(!journey->waits_for_store, std::memory_order_relaxed);
    journey->sent = {};
  }
  const MutexLock lock(mutex_);
  counting_ = counts_;
  step_began_ = clock_.now();
  spans_.clear();
  unfinished_ = static_cast<std::uint32_t>(journeys_.size());
  non_finite_ = false;
  ++steps_begun_;
  for (CondVar& changed : link_changed_) changed.notify_all();
  return {};
}

Status Runtime::ready(std::uint32_t tensor, std::span<float> gradient) {
  if (tensor >= where_.size()) {
    return Status::error(Code::kInvalidArgument, "engine: wanted a tensor below ", where_.size(),
                         ", got ", tensor);
  }
  Where& where = where_[tensor];
  Journey& journey = *journeys_[where.message];
  const sync::Member& member = journey.message->spec().members[where.member];
  if (!in_step_ || where.is_ready) {
    return Status::error(Code::kInvalidArgument, "engine: tensor ", member.name,
                         in_step_ ? " is ready for the second time in step "
                                  : " is ready outside a step; the last was ",
                         step_);
  }
  if (gradient.size() != member.shape.elements()) {
    return Status::error(Code::kInvalidArgument, "engine: tensor ", member.name, " has ",
                         member.shape.elements(), " elements, got a gradient of ", gradient.size());
  }
  where.is_ready = true;
  where.gradient = gradient;
  const sync::Stage& first = journey.message->stages().front();
  const Task task{.message = where.message,
                  .stage = 0,
                  .member = where.member,
                  .gradient = gradient,
                  .runnable_at = options_.record_spans ? clock_.now() : Time{0}};
  if (!options_.pipelining || !is_codec(first)) {
    if (Status status = journey.message->bind(where.member, gradient); !status) return status;
    if (options_.pipelining && last_member(where.message) && !parks(journey, nullptr)) {
      advance(where.message, 0);
    }
  } else if (parks(journey, &task)) {
    // It is done when its message's turn in the store comes, at the latest in wait().
  } else if (first.action.place == plan::Place::kHost) {
    const MutexLock lock(mutex_);
    (void)enqueue(task);
  } else {
    run_task(task, plan::Lane::kDevice);
  }
  if (options_.pipelining && !options_.on_work) run_due_device_tasks();
  return failure();
}

Status Runtime::progress() {
  if (in_step_ && options_.pipelining) run_due_device_tasks();
  return failure();
}

bool Runtime::last_member(std::uint32_t message) {
  // Release and acquire: the last one sees what the others' first stages wrote.
  return journeys_[message]->missing.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

bool Runtime::parks(Journey& journey, const Task* task) {
  if (journey.has_store.load(std::memory_order_acquire)) return false;
  const MutexLock lock(mutex_);
  if (journey.has_store.load(std::memory_order_relaxed)) return false;
  if (task != nullptr) {
    journey.parked.push_back(*task);
  } else {
    journey.parked_whole = true;
  }
  return true;
}

bool Runtime::enqueue(const Task& task) {
  const sync::Stage& stage = journeys_[task.message]->message->stages()[task.stage];
  if (stage.action.place == plan::Place::kHost) {
    host_queue_.push_back() = task;
    host_changed_.notify_one();
    return false;
  }
  device_queue_.push_back() = task;
  device_tasks_.fetch_add(1, std::memory_order_release);
  caller_changed_.notify_one();
  return true;
}

void Runtime::tell_of_work(bool for_device) const {
  if (for_device && options_.on_work) options_.on_work();
}

void Runtime::advance(std::uint32_t message, std::uint32_t next) {
  // What follows in the store may go on at once, and so on: a row, not a recursion.
  while (message != kNoMessage) {
    message = go_on(message, next);
    next = 0;
  }
}

std::uint32_t Runtime::finish(std::uint32_t message) {
  Journey& journey = *journeys_[message];
  const auto outcome = journey.message->end();
  if (!outcome) {
    fail_with(outcome.error());
    return kNoMessage;
  }
  bool for_device = false;
  std::uint32_t next = kNoMessage;
  {
    const MutexLock lock(mutex_);
    non_finite_ = non_finite_ || *outcome == sync::Outcome::kNonFinite;
    if (--unfinished_ == 0) caller_changed_.notify_one();
    if (journey.after == kNoMessage || !failure_) return kNoMessage;
    Journey& after = *journeys_[journey.after];
    after.has_store.store(true, std::memory_order_release);
    for (const Task& task : after.parked) for_device = enqueue(task) || for_device;
    after.parked.clear();
    if (std::exchange(after.parked_whole, false)) next = journey.after;
  }
  tell_of_work(for_device);
  return next;
}

std::uint32_t Runtime::go_on(std::uint32_t message, std::uint32_t next) {
  Journey& journey = *journeys_[message];
  const auto stages = journey.message->stages();
  // A group of one member exchanges nothing: no turn to wait for.
  while (next < stages.size() && !is_codec(stages[next]) && !takes_turn(stages[next])) {
    Status status = journey.message->start(next);
    if (status) status = journey.message->wait(next);
    if (!status) {
      fail_with(status);
      return kNoMessage;
    }
    ++next;
  }
  if (next == stages.size()) return finish(message);
  const sync::Stage& stage = stages[next];
  const Time now = clock_.now();
  bool for_device = false;
  {
    const MutexLock lock(mutex_);
    if (is_codec(stage)) {
      for_device = enqueue({.message = message, .stage = next, .runnable_at = now});
    } else {
      journey.stage = next;
      journey.runnable = true;
      journey.runnable_at = now;
      link_changed_[static_cast<std::size_t>(stage.link)].notify_one();
    }
  }
  tell_of_work(for_device);
  return kNoMessage;
}

void Runtime::run_task(const Task& task, plan::Lane lane) {
  sync::Message& message = *journeys_[task.message]->message;
  const Time start = clock_.now();
  Status status;
  bool all_members = true;
  if (task.member != kAllMembers) {
    status = message.bind(task.member, task.gradient);
    if (status) status = message.run_codec(task.stage, task.member);
    all_members = last_member(task.message);
  }
  // After the members one by one this closes the stage.
  if (status && all_members) status = message.run_codec(task.stage);
  if (!status) return fail_with(status);
  if (options_.record_spans) record(lane, task, start, clock_.now());
  if (all_members) advance(task.message, task.stage + 1);
}

void Runtime::run_due_device_tasks() {
  while (device_tasks_.load(std::memory_order_acquire) > 0) {
    Task task;
    {
      const MutexLock lock(mutex_);
      task = device_queue_.front();
      device_queue_.pop_front();
      device_tasks_.fetch_sub(1, std::memory_order_relaxed);
    }
    run_task(task, plan::Lane::kDevice);
  }
}

Status Runtime::flush_unready() {
  for (std::uint32_t tensor = 0; tensor < where_.size(); ++tensor) {
    Where& where = where_[tensor];
    if (where.is_ready) continue;
    const sync::Member& member = program_.messages[where.message].members[where.member];
    if (!options_.allow_unused) {
      return Status::error(Code::kInvalidArgument, "engine: tensor ", member.name,
                           " was not ready when step ", step_,
                           " was waited for; allow unused tensors if it has no gradient in some "
                           "steps");
    }
    where.stand_in.assign(member.shape.elements(), 0.0F);
    if (Status status = ready(tensor, where.stand_in); !status) return status;
  }
  return {};
}

void Runtime::run_serially() {
  for (std::uint32_t i = 0; i < journeys_.size(); ++i) {
    sync::Message& message = *journeys_[i]->message;
    for (std::uint32_t stage = 0; stage < message.stages().size(); ++stage) {
      const sync::Stage& what = message.stages()[stage];
      const Task task{.message = i, .stage = stage, .runnable_at = clock_.now()};
      Status status;
      if (is_codec(what)) {
        status = message.run_codec(stage);
      } else {
        const SentBytes before = sent_by({.message = i, .stage = stage});
        status = message.start(stage);
        if (status) status = message.wait(stage);
        if (status) count({.message = i, .stage = stage}, before);
      }
      if (!status) return fail_with(status);
      if (options_.record_spans && (is_codec(what) || takes_turn(what))) {
        record(is_codec(what) ? plan::Lane::kDevice : lane_of(what.link), task, task.runnable_at,
               clock_.now());
      }
    }
    advance(i, static_cast<std::uint32_t>(message.stages().size()));
  }
}

Result<StepReport> Runtime::wait() {
  if (!in_step_) {
    return fail(Code::kInvalidArgument, "engine: wait() without a step begun; the last was ",
                step_);
  }
  const Time called = clock_.now();
  StepReport report;
  report.unused = static_cast<unsigned>(
      std::ranges::count_if(where_, [](const Where& where) { return !where.is_ready; }));
  if (Status status = flush_unready(); !status) {
    fail_with(status);
    return tl::unexpected(status);
  }
  if (!options_.pipelining) run_serially();
  for (;;) {
    run_due_device_tasks();
    const MutexLock lock(mutex_);
    if (!failure_) return tl::unexpected(failure_);
    if (unfinished_ == 0) {
      report.outcome = non_finite_ ? sync::Outcome::kNonFinite : sync::Outcome::kDone;
      last_spans_.swap(spans_);
      break;
    }
    if (device_queue_.empty()) caller_changed_.wait(mutex_);
  }
  in_step_ = false;
  // Outcomes are the same on every rank, and so is this.
  if (report.outcome == sync::Outcome::kNonFinite) rewind();
  report.exposed_us = us(clock_.now() - called);
  report.sent = minus(fabric_.sent_bytes(), sent_before_);
  for (const auto& journey : journeys_) {
    const SentBytes promised = journey->message->promised_bytes(step_);
    report.promised.intra += promised.intra;
    report.promised.inter += promised.inter;
  }
  if (counts_ || !options_.pipelining) report.furthest = furthest();
  report.spans = last_spans_;
  return report;
}

void Runtime::rewind() {
  for (const auto& journey : journeys_) journey->message->rewind();
}

SentBytes Runtime::sent_by(const Turn& turn) const {
  const sync::Stage& stage = journeys_[turn.message]->message->stages()[turn.stage];
  return fabric_.group(stage.action.phase).sent_bytes();
}

void Runtime::count(const Turn& turn, const SentBytes& before) {
  const SentBytes sent = minus(sent_by(turn), before);
  Journey& journey = *journeys_[turn.message];
  journey.sent.intra += sent.intra;
  journey.sent.inter += sent.inter;
}

std::optional<MessageBytes> Runtime::furthest() const {
  const auto total = [](const SentBytes& bytes) {
    return static_cast<std::int64_t>(bytes.intra + bytes.inter);
  };
  std::optional<MessageBytes> found;
  std::int64_t most = 0;
  for (std::uint32_t i = 0; i < journeys_.size(); ++i) {
    const SentBytes promised = journeys_[i]->message->promised_bytes(step_);
    const std::int64_t off = std::abs(total(journeys_[i]->sent) - total(promised));
    if (off <= most) continue;
    most = off;
    found = {.message = i, .sent = journeys_[i]->sent, .promised = promised};
  }
  return found;
}

void Runtime::fail_with(const Status& status) {
  const MutexLock lock(mutex_);
  if (failure_) failure_ = status;
  failed_.store(true, std::memory_order_release);
  caller_changed_.notify_all();
  host_changed_.notify_all();
  for (CondVar& changed : link_changed_) changed.notify_all();
}

Status Runtime::failure() const {
  if (!failed_.load(std::memory_order_acquire)) return {};
  const MutexLock lock(mutex_);
  return failure_;
}

void Runtime::record(plan::Lane lane, const Task& task, Time start, Time end) {
  const sync::Message& message = *journeys_[task.message]->message;
  const plan::Action& action = message.stages()[task.stage].action;
  const auto& members = message.spec().members;
  const MutexLock lock(mutex_);
  spans_.push_back({.lane = lane,
                    .kind = action.kind == plan::ActionKind::kComm   ? plan::SpanKind::kComm
                            : action.kind == plan::ActionKind::kComp ? plan::SpanKind::kEncode
                                                                     : plan::SpanKind::kDecode,
                    .action = static_cast<std::uint8_t>(task.stage),
                    .message = task.message,
                    .tensor = static_cast<std::uint32_t>(task.member == kAllMembers
                                                             ? members.back().tensor
                                                             : members[task.member].tensor),
                    .runnable_us = us(task.runnable_at - step_began_),
                    .start_us = us(start - step_began_),
                    .end_us = us(end - step_began_)});
}

}  // namespace gradpress::engine
