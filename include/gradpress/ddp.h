// Data parallel training for PyTorch's C++ API, which has none of its own. Needs libtorch:
// component `torch` of the CMake package, target gradpress::torch.
//
//   auto world = gradpress::connect_world({});
//   auto ddp = gradpress::ddp::DataParallel::make(model.ptr(), std::move(*world),
//                                                 {.engine = {.codec = "acpsgd:4"}});
//   for each batch:
//     optimizer.zero_grad();
//     loss(model(batch)).backward();   // gradients are sent while backward runs
//     (*ddp)->synchronise();           // now every gradient is the mean over all workers
//     optimizer.step();
#pragma once

#include <gradpress/api.h>
#include <gradpress/engine.h>
#include <gradpress/group.h>
#include <gradpress/status.h>
#include <gradpress/world.h>
#include <torch/nn/module.h>

#include <memory>
#include <span>

namespace gradpress::ddp {

/// All ranks give the same, but for engine.log.
struct Options {
  /// Names in engine.rules and in plans are those of module->named_parameters().
  EngineOptions engine = {};
  /// Buffers (running means of batch norms) become rank 0's before the next forward: synchronise()
  /// does it, beside the gradients.
  bool broadcast_buffers = true;
  /// Each worker's gradients together are scaled down to this norm / √workers before anything is
  /// sent: nothing can be sent before backward has ended. RedSync's way for recurrent nets. 0: no.
  double clip_before = 0.0;
  /// What synchronising left in the gradients is scaled down to this norm, all together; by the
  /// same factor, to the bit, on every rank. 0: no.
  double clip_after = 0.0;
};

/// Wraps a module: broadcasts parameters and buffers of rank 0, hooks every gradient as autograd
/// finishes it, drives an Engine. The optimizer stays the user's, with as many parameter groups as
/// it has.
///
/// Threads: one worker's thread calls everything, backward included: with all tensors on the CPU
///          autograd runs the hooks on the thread that calls backward(). Several may live in one
///          process, each with a module of its own.
/// Memory:  the engine's; gradients are synchronised in place, where p.grad() has them.
/// Errors:  what a hook meets is returned by synchronise(). Any failure of a step ends the object:
///          later calls return it, and the other workers are told when it is destroyed. Nothing
///          is thrown.
class GRADPRESS_API DataParallel {
 public:
  /// Every rank calls it. Parameters that need no gradient are broadcast and then left alone; one
  /// that the module names twice is taken once, under its first name. The engine gets tensors in
  /// the reverse order of registration, which is near the order of backward; where it is not, less
  /// is sent during backward.
  /// Requires: the module's parameters and buffers stay the tensors that they are (their values may
  ///           change).
  /// Errors: kInvalidArgument, the same on every rank: parameters that are not float32 on the CPU
  ///         and contiguous, none that needs a gradient, modules that differ; the engine's.
  static Result<std::unique_ptr<DataParallel>> make(std::shared_ptr<torch::nn::Module> module,
                                                    World world, const Options& options);
  virtual ~DataParallel() = default;
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// After backward: returns when every gradient is the mean over all workers. Parameters that got
  /// no gradient since the last call are an error that names them, or count as zero with
  /// engine.allow_unused: p.grad() is then what the other workers' mean leaves, zeros included.
  /// Errors: kInvalidArgument: unused parameters, gradients that are sparse, a second backward
  ///         without synchronise() or NoSync between, a NoSync that lives; the engine's.
  virtual Result<EngineStep> synchronise() = 0;

  /// While one lives, backward accumulates and sends nothing: gradient accumulation. The backward
  /// after the last one sends what has accumulated. May be nested.
  class GRADPRESS_API NoSync {
   public:
    explicit NoSync(DataParallel& owner) : owner_(owner) { owner_.hold(true); }
    ~NoSync() { owner_.hold(false); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DataParallel& owner_;
  };

  /// The mean of a few numbers over all workers (losses, counts of right answers), the same bits
  /// everywhere. Every rank calls it, in the same place between its calls of synchronise().
  virtual Status mean(std::span<double> values) = 0;

  virtual Engine& engine() = 0;
  virtual unsigned rank() const = 0;
  virtual unsigned workers() const = 0;
  /// What the start, buffers and mean() have sent so far; EngineStep counts gradients alone.
  virtual SentBytes sent_besides() const = 0;

 protected:
  DataParallel() = default;

 private:
  virtual void hold(bool on) = 0;
};

}  // namespace gradpress::ddp
