// The engine's inside, for the files that share it: engine.cc runs steps and changes plans,
// engine_auto.cc follows the autopilot, engine_memory.cc looks after what stays between steps.
#pragma once

#include <gradpress/engine.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/audit.h"
#include "engine/auto_world.h"
#include "engine/autopilot.h"
#include "engine/exchange.h"
#include "engine/gradients.h"
#include "engine/program.h"
#include "engine/recorder.h"
#include "engine/runtime.h"
#include "engine/velocity.h"
#include "sync/fabric.h"

namespace gradpress::engine {

inline constexpr std::string_view kAuto = "auto";

inline Status internal(const std::exception& error) {
  return Status::error(Code::kInternal, "engine: ", error.what());
}

/// The public boundary: what is thrown behind it ends as a value, and touches no other engine.
template <class Work>
auto guarded(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    if constexpr (std::is_same_v<decltype(work()), Status>) {
      return internal(error);
    } else {
      return tl::unexpected(internal(error));
    }
  }
}

class PlainEngine final : public Engine {
 public:
  PlainEngine(sync::Fabric fabric, std::vector<TensorSpec> tensors, EngineOptions options,
              Clock& clock)
      : fabric_(std::make_unique<sync::Fabric>(std::move(fabric))),
        tensors_(std::move(tensors)),
        options_(std::move(options)),
        clock_(clock),
        exchange_(fabric_->group(plan::Phase::kFlat)),
        recorder_(tensors_.size()),
        pilot_recorder_(tensors_.size()),
        audit_(options_.strict) {
    if (options_.momentum) {
      velocity_.emplace(*options_.momentum, fabric_->topology().workers(), tensors_.size());
    }
  }
  ~PlainEngine() override {
    std::vector<std::vector<std::unique_ptr<sync::Message>>> messages;
    for (const auto& runtime : now_.runtimes) messages.push_back(runtime->dissolve());
    for (const auto& [name, installed] : parked_) {
      for (const auto& runtime : installed.runtimes) messages.push_back(runtime->dissolve());
    }
    // First the groups, then what they may still write to.
    fabric_.reset();
  }

  /// What the options ask for.
  Status start();

  Status ready(std::size_t tensor, std::span<float> gradient) override {
    return guarded([&] { return take_ready(tensor, gradient); });
  }
  Status progress() override {
    return guarded([&] { return in_step_ ? runtime().progress() : Status(); });
  }
  Result<EngineStep> wait() override {
    return guarded([&] { return end_step(); });
  }
  Status set_codec(std::string_view codec) override;
  Status set_plan(const Plan& plan) override;
  std::string running() const override {
    return pilot_ ? "auto (" + pilot_->state() + ")" : running_;
  }
  Plan plan() const override;
  void scale_residuals(float factor) override;
  void copy_residual(std::size_t tensor, std::span<float> out) const override;
  Status add_residual(std::size_t tensor, std::span<const float> residual) override;
  std::vector<std::byte> checkpoint() const override;
  Status restore(std::span<const std::byte> checkpoint) override;
  void record_trace(unsigned steps) override { recorder_.start(steps); }
  RecordedTrace recorded_trace() const override { return recorder_.trace(tensors_); }
  void record_gradients(unsigned steps) override { gradient_recorder_.start(steps); }
  RecordedGradients recorded_gradients() const override {
    return gradient_recorder_.gradients(tensors_, fabric_->rank(), fabric_->topology().workers());
  }
  std::vector<EngineSpan> spans() const override;
  std::uint64_t buffer_bytes() const override {
    std::uint64_t bytes = now_.shared.bytes();
    for (const auto& [name, installed] : parked_) bytes += installed.shared.bytes();
    return bytes;
  }
  std::string summary() const override;

 private:
  /// Programs that run, or have run and wait to run again.
  struct Installed {
    std::string description = {};
    Programs programs = {};
    std::vector<std::unique_ptr<Runtime>> runtimes = {};  ///< one, or two that take turns
    RuntimeShared shared = {};                            ///< theirs
    std::size_t turn = 0;
  };
  enum class Before : std::uint8_t {
    kHandOver,  ///< what ran before gives its residuals to what runs now, and is destroyed
    kPark,      ///< it is kept as it is, to run again
  };

  Runtime& runtime() const { return *now_.runtimes[now_.turn % now_.runtimes.size()]; }
  const Program& program_of_last_step() const { return now_.runtimes[last_turn_]->program(); }

  Status take_ready(std::size_t tensor, std::span<float> gradient);
  Status begin_if_due();
  Result<EngineStep> end_step();
  /// After the mean, where no sparsifier did. False: a gradient is out of range; the step is then
  /// taken back, on every rank alike.
  bool add_momentum();
  Status start_auto();
  /// Lets the autopilot look at the step that ended.
  Status steer();
  /// Of the step that is ending; the next ones count messages as the audit wants.
  Status audit(const StepReport& report);

  /// `codec`, and what the rules say.
  Result<Programs> codec_programs(std::string_view codec) const;
  Result<Programs> raw_programs() const;
  std::uint64_t raw_bucket_bytes() const;
  Result<Programs> simple_programs(const std::vector<std::string>& codecs) const;
  /// Makes the programs what runs from the next step on, on all ranks or none.
  Status install(Result<Programs> programs, std::string running, Before before = Before::kHandOver);
  /// After another program was put in place.
  void begin_anew();
  /// Runs a candidate of the autopilot's from the next step on.
  Status run_candidate(const AutoCandidate& candidate);
  /// Gives what a parked candidate holds to what runs, and destroys it.
  Status drop_candidate(const std::string& name);
  Status drop_candidates();
  Status make_runtimes(const Programs& programs, std::vector<std::unique_ptr<Runtime>>& made,
                       RuntimeShared& shared) const;
  Status between_steps(std::string_view what) const;
  /// Goes on with the plan of a checkpoint.
  Status run_saved_plan(const std::string& text);
  void say_what_is_not_in_effect() const;
  void say(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  std::unique_ptr<sync::Fabric> fabric_;
  const std::vector<TensorSpec> tensors_;
  const EngineOptions options_;
  Clock& clock_;
  Exchange exchange_;
  std::string running_;
  Installed now_;
  /// The autopilot's candidates that do not run now, by name. Their residuals are this rank's too.
  std::map<std::string, Installed, std::less<>> parked_;
  std::string candidate_;                                       ///< that runs
  std::vector<std::vector<std::vector<std::string>>> actions_;  ///< texts of their stages
  std::optional<Velocity> velocity_;
  TraceRecorder recorder_;        ///< the user's
  TraceRecorder pilot_recorder_;  ///< the autopilot's
  GradientRecorder gradient_recorder_;
  std::vector<plan::Span> spans_;
  std::uint64_t step_ = 0;
  std::size_t last_turn_ = 0;
  bool in_step_ = false;
  ByteAudit audit_;
  std::optional<AutoWorld> auto_world_;
  std::optional<Autopilot> pilot_;  ///< with codec "auto"
  Time steered_{0};                 ///< when the autopilot was done with the last step
};

}  // namespace gradpress::engine
