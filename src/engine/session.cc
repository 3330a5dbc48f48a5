// The callers' side of a session; its thread is in session_thread.cc.
#include "engine/session.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "sync/message.h"

namespace gradpress::engine {

namespace {

/// Lines that nobody fetches; the oldest go first.
constexpr std::size_t kMostLines = 1000;

template <class... Parts>
Status wrong(const Parts&... parts) {
  return Status::error(Code::kInvalidArgument, "engine: ", parts...);
}

/// What the user wrote, a line each: ranks that differ are told so in these words.
std::string settings_text(const SessionOptions& options) {
  const EngineOptions& engine = options.engine;
  std::string text;
  const auto add = [&text](const auto&... parts) {
    (detail::append(text, parts), ...);
    text += '\n';
  };
  const auto word = [](bool on) { return on ? "true" : "false"; };
  add("codec ", engine.plan ? std::string_view("of a plan") : std::string_view(engine.codec));
  for (const CodecRule& rule : engine.rules) add("rule ", rule.pattern, " ", rule.codec);
  if (engine.momentum) {
    add("momentum ", engine.momentum->momentum, ", nesterov ", word(engine.momentum->nesterov),
        ", masking ", word(engine.momentum->masking), ", clip_norm ", engine.momentum->clip_norm);
  }
  for (const std::string& codec : engine.automatic.codecs) add("auto may choose ", codec);
  add("auto: raw_steps ", engine.automatic.raw_steps, ", window ", engine.automatic.window,
      ", drift_interval ", engine.automatic.drift_interval, ", drift_factor ",
      engine.automatic.drift_factor);
  add("feedback ", engine.feedback ? word(*engine.feedback) : "where the codec needs it");
  add("pipelining ", word(engine.pipelining), ", fusion ", word(engine.fusion), ", sum_payloads ",
      word(engine.sum_payloads), ", strict ", word(engine.strict));
  add("least_elements ", engine.least_elements, ", bucket_bytes ", engine.bucket_bytes,
      ", raw_bucket_bytes ", engine.raw_bucket_bytes, ", seed ", engine.seed);
  add("allow_unused ", word(engine.allow_unused), ", return_unused ", word(options.return_unused));
  return text;
}

}  // namespace

Session::Session(std::vector<EngineTensor> tensors, SessionOptions options)
    : tensors_(std::move(tensors)),
      options_(std::move(options)),
      staging_(tensors_.size()),
      delivered_(tensors_.size()),
      step_marks_(tensors_.size()),
      marks_(tensors_.size()),
      missing_(tensors_.size()) {
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
    layouts_.push_back({Slice{.tensor = i, .elements = tensors_[i].shape.elements()}});
  }
}

Result<std::unique_ptr<Session>> Session::make(World world, std::vector<EngineTensor> tensors,
                                               SessionOptions options) {
  if (!world.group) return tl::unexpected(wrong("wanted a group, got none"));
  if (options.return_unused && options.engine.momentum) {
    return tl::unexpected(
        wrong("return_unused and momentum exclude each other: what a tensor was sent has its "
              "momentum by then and cannot go back into the residual; turn one of them off"));
  }
  if (Status status = sync::check_agreement(*world.group, settings_text(options)); !status) {
    return tl::unexpected(status);
  }
  std::unique_ptr<Session> made(new Session(std::move(tensors), options));
  if (options.return_unused) {
    std::vector<unsigned> ranks(world.group->size());
    std::iota(ranks.begin(), ranks.end(), 0U);
    auto group = world.group->subgroup(ranks);
    if (!group) return tl::unexpected(group.error());
    made->agreement_ = std::make_unique<UnusedAgreement>(std::move(*group), made->tensors_.size());
  }
  options.engine.allow_unused = true;  // push() checks it, before anything is handed over
  options.engine.automatic.other_raw_us = [session = made.get()] {
    return session->baseline_us_.load();
  };
  options.engine.log = [session = made.get()](std::string_view line) { session->add_line(line); };
  options.engine.on_work = [session = made.get()] {
    const MutexLock lock(session->mutex_);
    session->has_work_ = true;
    session->jobs_changed_.notify_one();
  };
  auto engine = Engine::make(std::move(world), made->tensors_, options.engine);
  if (!engine) return tl::unexpected(engine.error());
  made->engine_ = std::move(*engine);
  made->thread_ = std::thread([session = made.get()] { session->loop(); });
  return made;
}

Session::~Session() {
  close();
  const MutexLock lock(mutex_);
  while (inside_ > 0) events_changed_.wait(mutex_);
}

void Session::close() {
  {
    const MutexLock lock(mutex_);
    if (closing_) {
      ++inside_;
      while (!closed_) events_changed_.wait(mutex_);
      leave();
      return;
    }
    closing_ = true;
    jobs_changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  // After a failure both may write to the memory of gradients until they are gone.
  engine_.reset();
  agreement_.reset();
  const MutexLock lock(mutex_);
  closed_ = true;
  events_changed_.notify_all();
}

void Session::leave() {
  --inside_;
  events_changed_.notify_all();
}

void Session::add_line(std::string_view line) {
  const MutexLock lock(mutex_);
  if (lines_.size() == kMostLines) lines_.pop_front();
  Numbered& slot = lines_.push_back();
  slot.number = events_++;
  slot.event.kind = SessionEvent::Kind::kLog;
  slot.event.line = line;
  events_changed_.notify_all();
}

Status Session::check_usable() const {
  if (!failed_) return failed_;
  return closing_ ? wrong("it was closed") : Status();
}

Status Session::check_tensor(std::uint32_t tensor) const {
  if (tensor < tensors_.size()) return {};
  return wrong("wanted a tensor below ", tensors_.size(), ", got ", tensor);
}

Result<std::uint32_t> Session::add_layout(std::span<const std::uint32_t> tensors,
                                          std::span<const std::uint64_t> offsets) {
  if (tensors.empty() || tensors.size() != offsets.size()) {
    return tl::unexpected(wrong("layout: wanted tensors and as many offsets, got ", tensors.size(),
                                " and ", offsets.size()));
  }
  Layout layout;
  std::vector<bool> seen(tensors_.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (Status status = check_tensor(tensors[i]); !status) return tl::unexpected(status);
    if (seen[tensors[i]]) {
      return tl::unexpected(
          wrong("layout: tensor ", tensors_[tensors[i]].name, " stands in it twice"));
    }
    seen[tensors[i]] = true;
    layout.push_back({.tensor = tensors[i],
                      .offset = offsets[i],
                      .elements = tensors_[tensors[i]].shape.elements()});
  }
  const MutexLock lock(mutex_);
  layouts_.push_back(std::move(layout));
  return static_cast<std::uint32_t>(layouts_.size() - 1);
}

Status Session::check_complete(const Layout& last) const {
  std::vector<bool> there(tensors_.size());
  for (const Slice& slice : last) there[slice.tensor] = true;
  std::size_t missing = 0;
  std::size_t first = 0;
  for (std::size_t i = tensors_.size(); i-- > 0;) {
    if (marks_[i] != 0 || there[i]) continue;
    ++missing;
    first = i;
  }
  if (missing == 0) return {};
  return wrong("the step ends without ", missing, " of ", tensors_.size(),
               " tensors, the first is ", tensors_[first].name,
               ": hand each over, mark it as unused, or set allow_unused");
}

Status Session::check_bucket(const Layout& layout, bool last) const {
  std::size_t found = 0;
  for (const Slice& slice : layout) {
    const std::uint8_t marks = marks_[slice.tensor];
    if ((marks & kGiven) != 0) {
      return wrong("tensor ", tensors_[slice.tensor].name, " was handed over before in this step");
    }
    if (marks == 0) ++found;
  }
  const bool complete = !last || options_.engine.allow_unused || found == missing_;
  return complete ? Status() : check_complete(layout);
}

void Session::mark(std::uint32_t tensor, std::uint8_t bit) {
  if (marks_[tensor] == 0) --missing_;
  marks_[tensor] |= bit;
  in_step_ = true;
}

void Session::end_open_step() {
  Marks& kept = ended_marks_.push_back();
  kept.assign(marks_.begin(), marks_.end());
  marks_.assign(tensors_.size(), 0);
  missing_ = tensors_.size();
  in_step_ = false;
  ++ended_;
}

void Session::put_bucket(const Layout* layout, std::byte* memory, ElementType type, bool last) {
  if (layout != nullptr) {
    for (const Slice& slice : *layout) mark(slice.tensor, kGiven);
  }
  jobs_.push_back() = {.layout = layout, .memory = memory, .type = type, .last = last};
  if (last) end_open_step();
}

Status Session::push(std::uint32_t layout, void* memory, ElementType type, bool last) {
  const std::size_t alignment = size_of(type);
  if (memory == nullptr || reinterpret_cast<std::uintptr_t>(memory) % alignment != 0) {
    return wrong("wanted memory of a bucket, aligned to the ", alignment,
                 " bytes of an element, got ",
                 memory == nullptr ? "none" : "memory that is not aligned");
  }
  {
    const MutexLock lock(mutex_);
    if (Status status = check_usable(); !status) return status;
    if (layout >= layouts_.size()) {
      return wrong("wanted a layout below ", layouts_.size(), ", got ", layout);
    }
    if (Status status = check_bucket(layouts_[layout], last); !status) return status;
    put_bucket(&layouts_[layout], static_cast<std::byte*>(memory), type, last);
  }
  // Without the lock, for which the thread would only wait again.
  jobs_changed_.notify_one();
  return {};
}

Status Session::ready(std::uint32_t tensor, void* memory, std::uint64_t elements,
                      ElementType type) {
  if (Status status = check_tensor(tensor); !status) return status;
  if (elements != tensors_[tensor].shape.elements()) {
    return wrong("tensor ", tensors_[tensor].name, ": wanted ", tensors_[tensor].shape.elements(),
                 " elements, got ", elements);
  }
  return push(tensor, memory, type, false);
}

Status Session::mark_unused(std::span<const std::uint32_t> tensors) {
  for (const std::uint32_t tensor : tensors) {
    if (Status status = check_tensor(tensor); !status) return status;
  }
  const MutexLock lock(mutex_);
  if (Status status = check_usable(); !status) return status;
  for (const std::uint32_t tensor : tensors) mark(tensor, kUnused);
  return {};
}

Status Session::end_without_bucket() {
  if (missing_ > 0 && !options_.engine.allow_unused) return check_complete({});
  put_bucket(nullptr, nullptr, ElementType::kFloat32, true);
  jobs_changed_.notify_one();
  return {};
}

Status Session::end_step() {
  const MutexLock lock(mutex_);
  if (Status status = check_usable(); !status) return status;
  return end_without_bucket();
}

Result<EngineStep> Session::wait() {
  const MutexLock lock(mutex_);
  if (Status status = check_usable(); !status) return tl::unexpected(status);
  if (in_step_ || ended_ == taken_) {
    if (Status status = end_without_bucket(); !status) return tl::unexpected(status);
  }
  const std::uint64_t target = ended_;
  ++inside_;
  while (taken_ < target) {
    if (!outcomes_.empty()) {
      if (outcomes_.front().event.kind == SessionEvent::Kind::kStep) ++taken_;
      outcomes_.pop_front();
    } else if (!failed_ || closed_) {
      break;
    } else {
      events_changed_.wait(mutex_);
    }
  }
  leave();
  if (taken_ >= target) return last_step_;
  return tl::unexpected(!failed_ ? failed_ : wrong("it was closed"));
}

std::optional<SessionEvent> Session::next(std::optional<std::chrono::milliseconds> limit) {
  const Time deadline = steady_clock().now() + limit.value_or(std::chrono::milliseconds(0));
  const MutexLock lock(mutex_);
  ++inside_;
  while (outcomes_.empty() && lines_.empty() && !closed_) {
    if (!limit) {
      events_changed_.wait(mutex_);
    } else if (steady_clock().now() < deadline) {
      steady_clock().wait_until(events_changed_, mutex_, deadline);
    } else {
      break;
    }
  }
  std::optional<SessionEvent> event;
  if (!outcomes_.empty() && (lines_.empty() || outcomes_.front().number < lines_.front().number)) {
    event = outcomes_.front().event;
    if (event->kind == SessionEvent::Kind::kStep) ++taken_;
    outcomes_.pop_front();
  } else if (!lines_.empty()) {
    event = lines_.front().event;
    lines_.pop_front();
  } else if (closed_) {
    event.emplace().kind = SessionEvent::Kind::kClosed;
  }
  leave();
  return event;
}

Status Session::between_steps(const Work& work) {
  Answer answer;
  const MutexLock lock(mutex_);
  if (Status status = check_usable(); !status) return status;
  if (in_step_) {
    return wrong(
        "this must be called between steps: some gradients of a step were handed over, "
        "its last was not");
  }
  jobs_.push_back() = {.work = &work, .answer = &answer};
  jobs_changed_.notify_one();
  ++inside_;
  while (!answer.given) events_changed_.wait(mutex_);
  leave();
  return answer.status;
}

Status Session::set_codec(std::string_view codec) {
  return between_steps([&](Engine& engine) {
    votes_.reset();
    return engine.set_codec(codec);
  });
}

Status Session::scale_residuals(double factor) {
  const auto single = static_cast<float>(factor);
  if (!std::isfinite(single)) return wrong("residuals: wanted a finite factor, got ", factor);
  return between_steps([&](Engine& engine) {
    engine.scale_residuals(single);
    return Status();
  });
}

Status Session::check_residual(std::uint32_t tensor, std::size_t elements) const {
  if (Status status = check_tensor(tensor); !status) return status;
  if (elements == tensors_[tensor].shape.elements()) return {};
  return wrong("residual of ", tensors_[tensor].name, ": wanted ",
               tensors_[tensor].shape.elements(), " elements, got ", elements);
}

Status Session::copy_residual(std::uint32_t tensor, std::span<float> out) {
  if (Status status = check_residual(tensor, out.size()); !status) return status;
  return between_steps([&](Engine& engine) {
    engine.copy_residual(tensor, out);
    return Status();
  });
}

Status Session::add_residual(std::uint32_t tensor, std::span<const float> residual) {
  if (Status status = check_residual(tensor, residual.size()); !status) return status;
  return between_steps([&](Engine& engine) { return engine.add_residual(tensor, residual); });
}

Result<std::vector<std::byte>> Session::checkpoint() {
  std::vector<std::byte> bytes;
  const Status status = between_steps([&](Engine& engine) {
    bytes = engine.checkpoint();
    return Status();
  });
  if (!status) return tl::unexpected(status);
  return bytes;
}

Status Session::restore(std::span<const std::byte> checkpoint) {
  return between_steps([&](Engine& engine) {
    votes_.reset();
    return engine.restore(checkpoint);
  });
}

}  // namespace gradpress::engine
