// The engine: gradients of one model, synchronised over a group while backward still runs.
//
//   auto engine = gradpress::Engine::make(std::move(world), tensors, {.codec = "acpsgd:4"});
//   for each step:
//     for each gradient as backward finishes it:  engine->ready(i, gradient);
//     engine->wait();                             // now every gradient is the mean over all
//     workers
#pragma once

#include <gradpress/api.h>
#include <gradpress/group.h>
#include <gradpress/plan.h>
#include <gradpress/shape.h>
#include <gradpress/status.h>
#include <gradpress/world.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradpress {

struct EngineTensor {
  std::string name = {};
  Shape shape = {};
};

/// A codec for tensors by name. In the pattern * stands for any text, ? for one character.
struct CodecRule {
  std::string pattern = {};
  std::string codec = {};
};

/// Momentum that accumulates before a sparsifier (DGC, RedSync), so that what is sent late arrives
/// with the momentum it would have had. It takes the place of the optimizer's own momentum for the
/// tensors that a sparsifier encodes. For all other tensors, those of a dense warm-up included, the
/// engine applies the same momentum after the mean: what wait() leaves is then the update's
/// direction, momentum included, for every tensor.
struct MomentumCorrection {
  double momentum = 0.9;
  bool nesterov = false;
  bool masking = true;  ///< what is sent loses its momentum
  /// The summed gradient's norm above which each worker's is scaled down before it accumulates, a
  /// worker's own at clip_norm / √workers, tensor by tensor; 0: never.
  double clip_norm = 0.0;
};

/// How codec "auto" measures and decides. Ranks take every decision from numbers they agreed on, at
/// the same step. docs/decisions/0023-auto-by-interleaved-blocks.md has the method.
struct AutoOptions {
  /// What it may choose from, per tensor. Of two that are equally fast the earlier one is taken.
  std::vector<std::string> codecs = {"acpsgd:4", "efsign", "dgc:0.01"};
  /// Raw steps that are timed before anything is measured, after one that does not count. Steps
  /// above a second: two at most.
  unsigned raw_steps = 4;
  /// Step time in µs of the caller's own uncompressed path (for example DDP's all-reduce), or 0 if
  /// unknown. Asked after raw steps, and after each step that follows EngineStep::baseline_steps;
  /// the slowest rank's answer counts. `auto` keeps a codec or a plan only if it beats this as
  /// well.
  std::function<double()> other_raw_us = {};
  /// Steps per candidate, at most, whose times decide: in blocks of four, the candidates in turns.
  unsigned window = 28;
  /// The least share of a baseline step that a codec or a plan must save. The baseline is the
  /// faster of the engine's raw step and `other_raw_us`.
  double min_gain = 0.03;
  /// What settling may cost, in baseline steps: time beyond that of as many baseline steps, and all
  /// work between steps. The default is 3 % of 200 steps. A candidate that does not fit is not run.
  double settle_steps = 6.0;
  /// Steps between two looks at drift. If the median of the last `window` steps is `drift_factor`
  /// times above or below the usual step time in two looks in a row, everything is measured again.
  /// What runs then is replaced only by what saves `min_gain`.
  unsigned drift_interval = 100;
  double drift_factor = 1.3;
  /// Folder in which measured links and codecs are kept between runs; a log line names the file.
  /// Empty or "-": nothing is kept and nothing is read.
  std::string cache = {};
};

/// All ranks give the same, but for `log` and what `other_raw_us` answers: the largest counts.
struct EngineOptions {
  /// What every tensor takes where it can: "none", "efsign", "topk:0.01", "acpsgd:4", … or "auto":
  /// measure, plan, compress where it pays, and go back where it does not.
  std::string codec = "none";
  /// Before `codec`, the first rule that fits a tensor's name decides; with "auto" it decides what
  /// the planner may choose for that tensor.
  std::vector<CodecRule> rules = {};
  /// Runs this plan instead: `codec` and `rules` are not looked at. It must be for these tensors
  /// and this world.
  std::optional<Plan> plan = {};
  std::optional<MomentumCorrection> momentum = {};
  AutoOptions automatic = {};
  /// Error feedback; none: where the codec needs it.
  std::optional<bool> feedback = {};
  /// Each can be turned off alone, to see what it gives: overlap with backward, messages of several
  /// tensors, sums of payloads by all-reduce.
  bool pipelining = true;
  bool fusion = true;
  bool sum_payloads = true;
  /// Tensors with fewer elements travel raw.
  std::uint64_t least_elements = 1024;
  /// A message closes when its tensors have this many raw bytes.
  std::uint64_t bucket_bytes = 25'000'000;
  /// The same for messages of raw tensors alone. 0: on the backend local 1 MB, because there a
  /// message costs no latency and what is copied for it stays in caches; elsewhere bucket_bytes.
  std::uint64_t raw_bucket_bytes = 0;
  /// A tensor that is not ready at wait() counts as zero; off: that is an error which names it.
  bool allow_unused = false;
  /// Bytes on the wire that differ from what was promised by over 1 % are an error that names the
  /// message, not a warning. To tell messages apart, a link then carries one at a time.
  bool strict = false;
  std::uint64_t seed = 0;
  /// Keeps what each lane did in a step, for spans().
  bool record_spans = false;
  /// Called by the engine's threads when codec work for the device has come up. Whoever sets it
  /// lets the thread of ready() and wait() call progress() then: until that or wait() nobody does
  /// the work. Without it, ready() does such work between two gradients. Must neither call the
  /// engine nor throw.
  std::function<void()> on_work = {};
  /// Gets one line for what a user should know: compression not in effect, a warning of the audit.
  std::function<void(std::string_view)> log = {};
};

struct EngineStep {
  std::uint64_t step = 0;  ///< counted from 0; one that was not finite has the next one's number
  /// False, on every rank: a gradient somewhere held NaN or infinity or, where it is encoded or has
  /// momentum, kGradientLimit and above. The step counts for nothing: residuals, momentum, factors
  /// and random numbers of all tensors are as they were before it, bit for bit. All gradients that
  /// shared its message are NaN. Skip the update of all.
  bool finite = true;
  SentBytes sent = {};      ///< by this rank, counted by the backend
  SentBytes promised = {};  ///< what the plan's layouts say
  double exposed_us = 0.0;  ///< spent in wait()
  unsigned unused = 0;      ///< tensors that counted as zero
  /// Codec "auto" has settled on no compression, on every rank at this step, and holds no residual.
  /// The caller may switch to its own all-reduce; drift is then no longer monitored.
  bool rests = false;
  /// Not 0: codec "auto" asks for so many steps by the caller's own path now, and for their median
  /// from AutoOptions::other_raw_us after the next step here: the comparison is then of the same
  /// minutes. The same on every rank. A caller may ignore it; then its last answer counts.
  unsigned baseline_steps = 0;
};

/// An interval on a lane of a step: codec work or a collective. Times are from the step's begin.
struct EngineSpan {
  std::string_view lane = {};    ///< "device", "host", "intra", "inter"
  std::string_view action = {};  ///< "Comp@device", "allgather@flat", …
  std::uint32_t message = 0;
  std::string_view tensor = {};  ///< the message's first
  double start_us = 0.0;
  double end_us = 0.0;
};

/// When gradients became ready, over the steps seen while recording.
struct RecordedTrace {
  unsigned steps = 0;
  double forward_us = 0.0;  ///< from the end of wait() to the first gradient, in the mean
  struct Tensor {
    std::string name = {};
    Shape shape = {};
    double ready_gap_us = 0.0;  ///< since the gradient before, in the mean
    double spread_us = 0.0;     ///< standard deviation
  };
  std::vector<Tensor> tensors = {};  ///< in the order of mean readiness
};

/// Gradients of some steps, as one rank gave them to ready(): before encoding.
struct RecordedGradients {
  std::vector<EngineTensor> tensors = {};
  unsigned rank = 0;
  unsigned workers = 0;
  /// By step, then tensor. Tensors that were unused are zero.
  std::vector<std::vector<std::vector<float>>> steps = {};
};

/// One worker's engine for one model. Several may live in a process, each with a group of its own.
///
/// Threads: one calls ready() and wait(), and does the codec work placed on the device.
/// Memory:  residuals twice, so that a step can be taken back, and buffers for two messages per
///          lane; nothing is allocated per step.
/// Errors:  the first failure of a collective ends the engine: later calls return it. The gradients
///          of that step belong to the engine until it is destroyed.
class GRADPRESS_API Engine {
 public:
  /// Tensors in the order of backward, the same on every rank. Every rank calls it: ranks that
  /// disagree on anything are told before a gradient is sent.
  /// Errors: kInvalidArgument: no tensors, a name twice, an unknown codec, ranks that differ.
  static Result<std::unique_ptr<Engine>> make(World world, const std::vector<EngineTensor>& tensors,
                                              const EngineOptions& options);
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// The tensor's gradient is complete; in any order. The first of a step begins it.
  /// Requires: the gradient lives, untouched, until wait() returned, which leaves the mean in it.
  /// Errors:   kInvalidArgument on a tensor that does not exist, a wrong size, or one given twice.
  virtual Status ready(std::size_t tensor, std::span<float> gradient) = 0;
  /// Does the codec work for the device that has come up, if any: for a thread that has nothing to
  /// do between two gradients, which EngineOptions::on_work tells.
  virtual Status progress() = 0;
  /// Returns when all gradients are synchronised.
  virtual Result<EngineStep> wait() = 0;

  /// Changes the codec between steps; every rank calls it at the same step. Residuals carry over:
  /// nothing is lost. Rules stay in force.
  virtual Status set_codec(std::string_view codec) = 0;
  /// The same with a plan.
  virtual Status set_plan(const Plan& plan) = 0;
  /// What runs now: the codec's text, "plan", or "auto (…)" with what was decided.
  virtual std::string running() const = 0;
  /// What runs now as a plan that save_plan() can write.
  virtual Plan plan() const = 0;
  /// Multiplies all residuals (a changed loss scale). Requires: a finite factor; between steps.
  virtual void scale_residuals(float factor) = 0;
  /// This rank's share of what error feedback keeps of a tensor. Over all ranks the shares add up
  /// to all that was not yet applied, in units of one worker's gradient.
  /// Requires: out.size() is the tensor's elements; between steps.
  virtual void copy_residual(std::size_t tensor, std::span<float> out) const = 0;
  /// Adds to it.
  virtual Status add_residual(std::size_t tensor, std::span<const float> residual) = 0;

  /// All that the next step needs, residuals, momentum, factors, parities and the step's number
  /// included, of this rank. Between steps.
  virtual std::vector<std::byte> checkpoint() const = 0;
  /// Goes on where checkpoint() was taken, with the same tensors, codecs and world.
  /// Errors: kInvalidArgument when they differ (says what), kCorruptPayload.
  virtual Status restore(std::span<const std::byte> checkpoint) = 0;

  /// Records when gradients become ready from the next step on, for that many steps.
  virtual void record_trace(unsigned steps) = 0;
  /// What was recorded so far. write_trace() makes a file of it.
  virtual RecordedTrace recorded_trace() const = 0;
  /// Keeps this rank's gradients from the next step on, for that many steps: each takes the memory
  /// of all gradients.
  virtual void record_gradients(unsigned steps) = 0;
  /// What was kept so far. write_gradients() makes a file of it.
  virtual RecordedGradients recorded_gradients() const = 0;
  /// Of the last step; needs EngineOptions::record_spans. Valid until the next call of ready().
  virtual std::vector<EngineSpan> spans() const = 0;

  /// Memory for messages under way, what they receive included: of two messages per lane (device,
  /// host, and each link), whatever their number (docs/concurrency.md). Residuals, momentum and
  /// what codecs keep beside them are not in it.
  virtual std::uint64_t buffer_bytes() const = 0;
  /// What happens to the tensors, for people: messages, codecs, options, bytes against none.
  virtual std::string summary() const = 0;

 protected:
  Engine() = default;
};

/// The residuals that a rank's Engine::checkpoint() holds, by tensor: what copy_residual() gave
/// when it was taken. For jobs that go on with another number of workers. Errors: kCorruptPayload.
GRADPRESS_API Result<std::vector<std::vector<float>>> checkpoint_residuals(
    std::span<const std::byte> checkpoint);

/// Writes a recorded trace in the format gradpress-trace-1, with the spreads beside the means.
GRADPRESS_API Status write_trace(const std::string& file, std::string_view model,
                                 const RecordedTrace& trace);

/// Writes recorded gradients, for `gradpress replay`; the format is in docs/gradients_file.md.
/// Errors: kInvalidArgument: no steps, sizes that are not the tensors', a file that cannot be
///         written.
GRADPRESS_API Status write_gradients(const std::string& file, const RecordedGradients& gradients);
/// Errors: kInvalidArgument: a file that cannot be read, is none, or is damaged; says where.
GRADPRESS_API Result<RecordedGradients> read_gradients(const std::string& file);

}  // namespace gradpress
