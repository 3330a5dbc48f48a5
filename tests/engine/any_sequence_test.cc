// Random sequences of all that may happen to an engine, against a ledger kept by hand: nothing is
// lost (without momentum), and nothing but what a checkpoint holds decides what comes next.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/local/local.h"
#include "engine_workers.h"
#include "plan/fit.h"
#include "plan/tree.h"
#include "spec/spec.h"
#include "support/group.h"

namespace gradpress {
namespace {

using Gradients = test::EngineGradients;

/// Every codec that carries a residual, and none.
constexpr std::array kCodecs = {
    "none",    "efsign",   "onebit", "topk:0.1",    "randomk:0.2", "dgc:0.1",  "qsgd:4",
    "natural", "terngrad", "int8",   "redsync:0.1", "powersgd:2",  "acpsgd:2", "redsync-q:0.1"};
/// Sums of their payloads are rounded to 16 bits, which no residual keeps: not where payloads are
/// summed.
constexpr std::array kCasts = {"fp16", "bf16"};

bool sums_payloads(const plan::Option& option) {
  return std::ranges::any_of(option.actions(), [](const plan::Action& action) {
    return action.encoded && (action.collective == plan::Collective::kAllReduce ||
                              action.collective == plan::Collective::kReduceScatter ||
                              action.collective == plan::Collective::kReduce);
  });
}

struct Op {
  enum class Kind : std::uint8_t {
    kStep,
    kBadStep,     ///< a NaN or an infinity on one rank
    kRepeat,      ///< a step, back by a checkpoint, a bad step perhaps, the same step again
    kCodec,       ///< set_codec
    kPlan,        ///< set_plan
    kScale,       ///< scale_residuals
    kAdd,         ///< add_residual
    kCheckpoint,  ///< is kept
    kRestore,     ///< of what is kept; refused when another plan runs since
  };
  Kind kind = Kind::kStep;
  std::uint64_t seed = 0;  ///< of its gradients
  bool unused = false;     ///< some ranks do not have some tensors
  unsigned bad_rank = 0;
  std::size_t bad_tensor = 0;
  float bad_value = 0.0F;
  float factor = 1.0F;
  std::string codec = {};
  Plan plan = {};
};

/// One random world with a random model, and what happens there.
struct Sequence {
  std::uint64_t seed = 0;
  comm::Topology topology = {};
  std::vector<EngineTensor> model = {};
  EngineOptions options = {};
  std::vector<Op> ops = {};
};

/// What one rank saw of one operation.
struct Seen {
  Status status = {};
  std::vector<Gradients> given = {};    ///< of its steps
  std::vector<Gradients> results = {};  ///< of the steps that counted
  bool finite = true;
  std::string wrong = {};    ///< what a rank sees by itself
  Gradients residuals = {};  ///< after it
};

template <class T>
const T& any_of(std::mt19937_64& random, const std::vector<T>& values) {
  return values[random() % values.size()];
}

Plan random_plan(std::mt19937_64& random, const Sequence& sequence) {
  static const std::vector<plan::Option> options = plan::OptionTree({.extended = true}).options();
  const plan::Topology topology{.machines = sequence.topology.machines,
                                .workers = sequence.topology.workers_per_machine};
  Plan plan{
      .tree = "extended", .machines = topology.machines, .workers_per_machine = topology.workers};
  for (std::uint32_t i = 0; i < sequence.model.size(); ++i) {
    const EngineTensor& tensor = sequence.model[i];
    const bool casts = random() % 8 == 0;
    std::string codec =
        casts ? kCasts[random() % kCasts.size()] : kCodecs[random() % kCodecs.size()];
    std::string option = "allreduce@flat";
    const plan::CodecFit fit = plan::codec_fit(*codec::parse_spec(codec));
    for (unsigned tries = 0; tries < 200 && fit.encodes; ++tries) {
      const plan::Option& candidate = any_of(random, options);
      if (candidate.is_raw() || (casts && sums_payloads(candidate)) ||
          !plan::why_not(candidate, fit, tensor.shape, topology).empty()) {
        continue;
      }
      option = plan::to_text(candidate);
      break;
    }
    if (option == "allreduce@flat") codec = "none";
    plan.alternates = plan.alternates || codec.starts_with("acpsgd");
    plan.tensors.push_back({.name = tensor.name,
                            .shape = tensor.shape,
                            .codec = codec,
                            .option = option,
                            .bucket = i,
                            .bucket_q = i});
  }
  return plan;
}

Op random_op(std::mt19937_64& random, const Sequence& sequence) {
  using Kind = Op::Kind;
  static const std::vector<Kind> kinds = {
      Kind::kStep,  Kind::kStep, Kind::kStep,  Kind::kBadStep, Kind::kBadStep,    Kind::kRepeat,
      Kind::kCodec, Kind::kPlan, Kind::kScale, Kind::kAdd,     Kind::kCheckpoint, Kind::kRestore};
  static const std::vector<float> bad = {std::numeric_limits<float>::quiet_NaN(),
                                         std::numeric_limits<float>::infinity(),
                                         -std::numeric_limits<float>::infinity()};
  static const std::vector<float> factors = {0.5F, 2.0F, 0.3F, 1.5F, -1.0F};
  Op op{.kind = any_of(random, kinds),
        .seed = random(),
        .unused = random() % 3 == 0,
        .bad_rank = static_cast<unsigned>(random() % sequence.topology.workers()),
        .bad_tensor = random() % sequence.model.size(),
        .bad_value = any_of(random, bad),
        .factor = any_of(random, factors),
        .codec = kCodecs[random() % kCodecs.size()]};
  if (op.kind == Kind::kPlan) op.plan = random_plan(random, sequence);
  return op;
}

Sequence random_sequence(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Sequence sequence{
      .seed = seed,
      .topology = {.machines = static_cast<std::uint32_t>(1 + random() % 3),
                   .workers_per_machine = static_cast<std::uint32_t>(1 + random() % 2)}};
  const std::size_t tensors = 1 + random() % 4;
  for (std::size_t i = 0; i < tensors; ++i) {
    const Shape shape =
        random() % 3 == 0 ? Shape{1 + random() % 60} : Shape{1 + random() % 20, 1 + random() % 20};
    sequence.model.push_back({.name = std::string("t").append(std::to_string(i)), .shape = shape});
  }
  sequence.options = {.codec = kCodecs[random() % kCodecs.size()],
                      .momentum = random() % 4 == 0
                                      ? std::optional(MomentumCorrection{
                                            .momentum = 0.5, .nesterov = random() % 2 == 0})
                                      : std::nullopt,
                      .feedback = true,
                      .pipelining = random() % 4 != 0,
                      .fusion = random() % 4 != 0,
                      .least_elements = random() % 2 == 0 ? 1U : 64U,
                      .allow_unused = true,
                      .seed = random()};
  const std::size_t ops = 6 + random() % 10;
  for (std::size_t i = 0; i < ops; ++i) sequence.ops.push_back(random_op(random, sequence));
  return sequence;
}

std::string to_text(const Op& op) {
  using Kind = Op::Kind;
  const std::string unused = op.unused ? " with unused tensors" : "";
  const std::string bad = std::to_string(op.bad_value) + " in tensor " +
                          std::to_string(op.bad_tensor) + " on rank " + std::to_string(op.bad_rank);
  switch (op.kind) {
    case Kind::kStep:
      return "a step" + unused;
    case Kind::kBadStep:
      return "a step with " + bad + unused;
    case Kind::kRepeat:
      return "a step, twice from one checkpoint, between them " + bad + unused;
    case Kind::kCodec:
      return "set_codec " + op.codec;
    case Kind::kPlan: {
      std::string text = "set_plan";
      for (const PlannedTensor& tensor : op.plan.tensors) {
        text += "\n      " + tensor.name + " " + tensor.codec + " by " + tensor.option;
      }
      return text;
    }
    case Kind::kScale:
      return "scale_residuals " + std::to_string(op.factor);
    case Kind::kAdd:
      return "add_residual";
    case Kind::kCheckpoint:
      return "checkpoint";
    case Kind::kRestore:
      return "restore";
  }
  return {};
}

std::string to_text(const Sequence& sequence) {
  std::string text = "sequence of seed " + std::to_string(sequence.seed) + ": " +
                     std::to_string(sequence.topology.machines) + " x " +
                     std::to_string(sequence.topology.workers_per_machine) + ", codec " +
                     sequence.options.codec +
                     (sequence.options.momentum ? " with momentum, tensors" : ", tensors");
  for (const EngineTensor& tensor : sequence.model) text += " " + tensor.shape.to_string();
  for (std::size_t i = 0; i < sequence.ops.size(); ++i) {
    text += "\n  " + std::to_string(i) + ": " + to_text(sequence.ops[i]);
  }
  return text;
}

/// One rank's part in a sequence.
class Rank {
 public:
  Rank(const Sequence& sequence, unsigned rank, Engine& engine)
      : sequence_(sequence), rank_(rank), engine_(engine) {}

  Seen run(const Op& op) {
    using Kind = Op::Kind;
    Seen seen;
    switch (op.kind) {
      case Kind::kStep:
        step(op, op.seed, false, seen);
        break;
      case Kind::kBadStep:
        bad_step(op, seen);
        break;
      case Kind::kRepeat:
        repeat(op, seen);
        break;
      case Kind::kCodec:
        seen.status = engine_.set_codec(op.codec);
        break;
      case Kind::kPlan:
        seen.status = engine_.set_plan(op.plan);
        break;
      case Kind::kScale:
        engine_.scale_residuals(op.factor);
        break;
      case Kind::kAdd:
        add(op, seen);
        break;
      case Kind::kCheckpoint:
        kept_ = engine_.checkpoint();
        break;
      case Kind::kRestore:
        if (!kept_.empty()) seen.status = engine_.restore(kept_);
        break;
    }
    look(seen);
    return seen;
  }

 private:
  Gradients gradients(std::uint64_t seed) const {
    std::mt19937_64 random(seed + rank_);
    std::normal_distribution<float> normal;
    Gradients all;
    for (const EngineTensor& tensor : sequence_.model) {
      std::vector<float>& values = all.emplace_back(tensor.shape.elements());
      for (float& value : values) value = normal(random);
    }
    return all;
  }

  /// Hands over the gradients of `seed`; unused ones are zero in what is noted.
  void step(const Op& op, std::uint64_t seed, bool bad, Seen& seen) {
    Gradients values = gradients(seed);
    Gradients given = values;
    std::mt19937_64 random(seed ^ (rank_ + 77));
    if (bad && rank_ == op.bad_rank) {
      std::vector<float>& spoilt = values[op.bad_tensor];
      spoilt[random() % spoilt.size()] = op.bad_value;
    }
    Status status;
    for (std::size_t i = 0; i < values.size() && status; ++i) {
      // One rank has it always: what is applied to a tensor that nobody has, nobody knows.
      const bool always = i % sequence_.topology.workers() == rank_;
      const bool is_bad = bad && rank_ == op.bad_rank && i == op.bad_tensor;
      if (op.unused && random() % 4 == 0 && !is_bad && !always) {
        std::ranges::fill(given[i], 0.0F);
        std::ranges::fill(values[i], 0.0F);
        unused_.push_back(i);
      } else {
        status = engine_.ready(i, values[i]);
      }
    }
    const auto done = engine_.wait();
    seen.status = !status ? status : done ? Status() : done.error();
    seen.finite = done && done->finite;
    // Of a tensor that was not handed over nobody tells this rank the mean; another rank's is it.
    for (const std::size_t i : unused_) values[i].clear();
    unused_.clear();
    seen.given.push_back(std::move(given));
    seen.results.push_back(std::move(values));
  }

  void bad_step(const Op& op, Seen& seen) {
    const std::vector<std::byte> before = engine_.checkpoint();
    step(op, op.seed, true, seen);
    if (seen.finite) seen.wrong = "the bad step counts";
    if (engine_.checkpoint() != before) seen.wrong = "the bad step left something behind";
    seen.given.clear();
    seen.results.clear();
  }

  void repeat(const Op& op, Seen& seen) {
    const std::vector<std::byte> before = engine_.checkpoint();
    step(op, op.seed, false, seen);
    const std::vector<std::byte> after = engine_.checkpoint();
    if (!seen.status) return;
    seen.status = engine_.restore(before);
    if (!seen.status) return;
    Seen other;
    if (op.seed % 2 == 0) step(op, op.seed + 1, true, other);
    Seen again;
    step(op, op.seed, false, again);
    if (!test::same_bits(again.results[0], seen.results[0])) {
      seen.wrong = "the same step from the same checkpoint has another result";
    } else if (engine_.checkpoint() != after) {
      seen.wrong = "the same step from the same checkpoint leaves another state";
    }
  }

  void add(const Op& op, Seen& seen) {
    const Gradients more = gradients(op.seed);
    for (std::size_t i = 0; i < more.size() && seen.status; ++i) {
      seen.status = engine_.add_residual(i, more[i]);
    }
    seen.given.push_back(more);
  }

  void look(Seen& seen) {
    for (std::size_t i = 0; i < sequence_.model.size(); ++i) {
      engine_.copy_residual(i, seen.residuals.emplace_back(sequence_.model[i].shape.elements()));
    }
    const auto saved = checkpoint_residuals(engine_.checkpoint());
    if (!saved || !test::same_bits(*saved, seen.residuals)) {
      seen.wrong = "checkpoint_residuals differs from copy_residual";
    }
  }

  const Sequence& sequence_;
  const unsigned rank_;
  Engine& engine_;
  std::vector<std::byte> kept_;
  std::vector<std::size_t> unused_;
};

/// By rank, then operation. A rank that failed has fewer.
std::vector<std::vector<Seen>> run(const Sequence& sequence) {
  const unsigned workers = sequence.topology.workers();
  auto world =
      comm::make_local_world({.topology = sequence.topology, .timeout = std::chrono::seconds(60)});
  std::vector<std::vector<Seen>> seen(workers);
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      auto engine = Engine::make({.group = std::move((*world)[rank]),
                                  .machines = sequence.topology.machines,
                                  .workers_per_machine = sequence.topology.workers_per_machine},
                                 sequence.model, sequence.options);
      if (!engine) {
        seen[rank].push_back({.status = engine.error(), .wrong = "no engine"});
        return;
      }
      Rank mine(sequence, rank, **engine);
      for (const Op& op : sequence.ops) {
        seen[rank].push_back(mine.run(op));
        const Seen& last = seen[rank].back();
        if (!last.status && last.status.code() != Code::kInvalidArgument) return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return seen;
}

/// The slow model: what is owed of every element, in double, by the rules alone.
class Ledger {
 public:
  explicit Ledger(const Sequence& sequence) : sequence_(sequence) {
    for (const EngineTensor& tensor : sequence.model) {
      now_.owed.emplace_back(tensor.shape.elements());
      now_.peak.push_back(1.0);
    }
  }

  /// Enters an operation as all ranks saw it. Returns what is wrong with it; empty: nothing.
  std::string enter(const Op& op, const std::vector<const Seen*>& ranks) {
    for (unsigned rank = 0; rank < ranks.size(); ++rank) {
      const Seen& seen = *ranks[rank];
      const std::string who = "rank " + std::to_string(rank) + ": ";
      if (!seen.wrong.empty()) return who + seen.wrong + " " + seen.status.to_string();
      if (seen.status.code() != ranks[0]->status.code()) return who + "ended otherwise than rank 0";
      if (!seen.status && op.kind != Op::Kind::kRestore) return who + seen.status.to_string();
    }
    if (ranks[0]->status) {
      if (std::string wrong = follow(op, ranks); !wrong.empty()) return wrong;
    }
    // Momentum makes more of a gradient than it was, and masking drops some of that.
    return sequence_.options.momentum ? std::string() : compare(ranks);
  }

 private:
  struct Books {
    std::vector<std::vector<double>> owed = {};  ///< by tensor: Σ gradients − workers × Σ applied
    std::vector<double> peak = {};  ///< the largest magnitude met: what rounding is measured by
  };

  std::string follow(const Op& op, const std::vector<const Seen*>& ranks) {
    using Kind = Op::Kind;
    switch (op.kind) {
      case Kind::kStep:
      case Kind::kRepeat:
        return apply(ranks);
      case Kind::kAdd:
        for (const Seen* seen : ranks) add(seen->given[0], 1.0);
        break;
      case Kind::kScale:
        for (auto& tensor : now_.owed) {
          for (double& value : tensor) value *= static_cast<double>(op.factor);
        }
        for (double& peak : now_.peak) peak *= std::max(1.0, std::fabs(double{op.factor}));
        break;
      case Kind::kCheckpoint:
        kept_ = now_;
        has_kept_ = true;
        break;
      case Kind::kRestore:
        if (has_kept_) now_ = kept_;
        break;
      case Kind::kBadStep:
      case Kind::kCodec:
      case Kind::kPlan:
        break;
    }
    return {};
  }

  std::string apply(const std::vector<const Seen*>& ranks) {
    for (const Seen* seen : ranks) {
      if (!seen->finite) return "a good step does not count";
      add(seen->given[0], 1.0);
    }
    for (std::size_t i = 0; i < sequence_.model.size(); ++i) {
      const std::vector<float>* mean = nullptr;
      for (const Seen* seen : ranks) {
        const std::vector<float>& own = seen->results[0][i];
        if (own.empty()) continue;  // unused on that rank
        if (mean != nullptr && !test::same_bits({own}, {*mean})) {
          return "ranks hold different gradients of tensor " + std::to_string(i);
        }
        mean = &own;
      }
      add(i, *mean, -static_cast<double>(ranks.size()));
    }
    return {};
  }

  void add(const Gradients& values, double factor) {
    for (std::size_t i = 0; i < values.size(); ++i) add(i, values[i], factor);
  }
  void add(std::size_t tensor, const std::vector<float>& values, double factor) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      double& owed = now_.owed[tensor][i];
      owed += factor * static_cast<double>(values[i]);
      now_.peak[tensor] = std::max(
          {now_.peak[tensor], std::fabs(owed), std::fabs(factor * static_cast<double>(values[i]))});
    }
  }

  std::string compare(const std::vector<const Seen*>& ranks) const {
    for (std::size_t tensor = 0; tensor < now_.owed.size(); ++tensor) {
      for (std::size_t i = 0; i < now_.owed[tensor].size(); ++i) {
        double kept = 0.0;
        for (const Seen* seen : ranks) kept += static_cast<double>(seen->residuals[tensor][i]);
        if (std::fabs(kept - now_.owed[tensor][i]) <= kRounding * now_.peak[tensor]) continue;
        return "tensor " + std::to_string(tensor) + " element " + std::to_string(i) +
               ": the residuals add up to " + std::to_string(kept) + ", wanted " +
               std::to_string(now_.owed[tensor][i]);
      }
    }
    return {};
  }

  /// Sequences have about twenty steps of up to six workers, and each rounds a few times.
  static constexpr double kRounding = 1e-5;

  const Sequence& sequence_;
  Books now_;
  Books kept_;
  bool has_kept_ = false;
};

/// What went wrong, with the seed and the sequence; empty: nothing.
std::string complaint(const Sequence& sequence) {
  const auto seen = run(sequence);
  Ledger ledger(sequence);
  for (std::size_t i = 0; i < sequence.ops.size(); ++i) {
    std::vector<const Seen*> ranks;
    for (const auto& rank : seen) {
      if (rank.size() > i) ranks.push_back(&rank[i]);
    }
    std::string wrong = ranks.size() == seen.size()
                            ? ledger.enter(sequence.ops[i], ranks)
                            : "a rank did not come this far: " + seen[0].back().status.to_string();
    if (!wrong.empty()) {
      return "operation " + std::to_string(i) + ": " + wrong + "\n" + to_text(sequence);
    }
  }
  return {};
}

TEST(AnySequence, LosesNothingAndHidesNothing) {
  constexpr unsigned kSequences = 400;
  for (unsigned i = 0; i < kSequences; ++i) {
    const std::string wrong = complaint(random_sequence(test::run_seed() + i));
    ASSERT_EQ(wrong, "") << "sequence " << i << " of GRADPRESS_TEST_SEED=" << test::run_seed();
  }
}

}  // namespace
}  // namespace gradpress
