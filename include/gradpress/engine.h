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

/// All ranks give the same, but for `log`.
struct EngineOptions {
  /// What every tensor takes where it can: "none", "efsign", "topk:0.01", "acpsgd:4", …
  std::string codec = "none";
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
  /// A tensor that is not ready at wait() counts as zero; off: that is an error which names it.
  bool allow_unused = false;
  /// Bytes on the wire that differ from what was promised by over 1 % are an error, not a warning.
  bool strict = false;
  std::uint64_t seed = 0;
  /// Gets one line for what a user should know: compression not in effect, a warning of the audit.
  std::function<void(std::string_view)> log = {};
};

struct EngineStep {
  std::uint64_t step = 0;
  /// False: a gradient somewhere held NaN, infinity or more than kGradientLimit. All gradients that
  /// shared its message are NaN on every rank; residuals are as they were. Skip the update.
  bool finite = true;
  SentBytes sent = {};      ///< by this rank, counted by the backend
  SentBytes promised = {};  ///< what the plan's layouts say
  double exposed_us = 0.0;  ///< spent in wait()
  unsigned unused = 0;      ///< tensors that counted as zero
};

/// One worker's engine for one model. Several may live in a process, each with a group of its own.
///
/// Threads: one calls ready() and wait(), and does the codec work placed on the device.
/// Memory:  residuals, and the buffers of every message; nothing is allocated per step.
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
  /// Returns when all gradients are synchronised.
  virtual Result<EngineStep> wait() = 0;

  /// Changes the codec between steps; every rank calls it at the same step. Residuals carry over:
  /// nothing is lost.
  virtual Status set_codec(std::string_view codec) = 0;
  /// Multiplies all residuals (a changed loss scale). Requires: a finite factor; between steps.
  virtual void scale_residuals(float factor) = 0;
  /// This rank's share of what error feedback keeps of a tensor. Over all ranks the shares add up
  /// to all that was not yet applied, in units of one worker's gradient.
  /// Requires: out.size() is the tensor's elements; between steps.
  virtual void copy_residual(std::size_t tensor, std::span<float> out) const = 0;
  /// Adds to it.
  virtual Status add_residual(std::size_t tensor, std::span<const float> residual) = 0;

  /// What happens to the tensors, for people: messages, codecs, options, bytes against none.
  virtual std::string summary() const = 0;

 protected:
  Engine() = default;
};

}  // namespace gradpress
