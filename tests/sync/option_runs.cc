#include "sync/option_runs.h"

#include <gradpress/codec.h>
#include <gradpress/group.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "plan/fit.h"
#include "spec/spec.h"
#include "support/gradient.h"
#include "support/option_model.h"

namespace gradpress::test {

namespace {

constexpr std::uint64_t kSteps = 3;
constexpr std::uint64_t kSeed = 20230508;
constexpr unsigned kDraws = 40;
constexpr std::size_t kEnough = 3;  // complaints of one worker

using plan::ActionKind;
using plan::Collective;

/// One worker's gradient of one member in one step.
std::vector<float> gradient_of(const Lesson& lesson, const sync::Member& member, unsigned worker,
                               std::uint64_t step) {
  return grid_gradient(member.shape.elements(), lesson.gradient_seed + 1'000'003 * member.tensor +
                                                    10'007 * step + 101 * worker);
}

/// Fills in all but the seed. Returns the closest call of any decision.
double work_out(const OptionCase& one, const comm::Topology& topology, Lesson& lesson) {
  double closest = INFINITY;
  lesson.means.assign(kSteps, {});
  lesson.gradients.clear();
  lesson.unapplied.clear();
  lesson.conserves = true;
  for (const sync::Member& member : one.members) {
    OptionModel model({.option = one.option,
                       .codec = member.codec,
                       .shape = member.shape,
                       .topology = topology,
                       .seed = kSeed,
                       .tensor = member.tensor,
                       .feedback = one.feedback});
    std::vector<double> total(member.shape.elements(), 0.0);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      std::vector<std::vector<float>> gradients;
      for (unsigned worker = 0; worker < topology.workers(); ++worker) {
        gradients.push_back(gradient_of(lesson, member, worker, step));
        for (std::size_t i = 0; i < total.size(); ++i) total[i] += gradients.back()[i];
      }
      lesson.means[step].push_back(model.step(gradients, step));
    }
    lesson.gradients.push_back(std::move(total));
    lesson.unapplied.push_back(model.unapplied());
    lesson.conserves = lesson.conserves && model.conserves();
    closest = std::min(closest, model.closest_call());
  }
  return closest;
}

bool sums_payloads(const plan::Option& option) {
  return std::ranges::any_of(option.actions(), [](const plan::Action& action) {
    return action.kind == ActionKind::kComm && action.encoded &&
           (action.collective == Collective::kAllReduce ||
            action.collective == Collective::kReduceScatter ||
            action.collective == Collective::kReduce);
  });
}

/// How far one element of a mean may be from the textbook's. Gradients are below 4 and three steps'
/// worth below 12.
double mean_tolerance(const sync::Member& member) {
  switch (codec::parse_spec(member.codec)->kind) {
    case codec::Kind::kFp16:
      // Each of at most three encodes and three sums of payloads rounds to 11 bits, and an executor
      // that divides earlier rounds elsewhere.
      return 6 * 12 * 0x1.0p-11;
    case codec::Kind::kBf16:
      return 6 * 12 * 0x1.0p-8;
    case codec::Kind::kAcpSgd:
    case codec::Kind::kPowerSgd:
      // An orthonormal basis magnifies the rounding of what it is made of by that one's condition.
      return 0x1.0p-10;
    default:
      // Ten roundings of 12. What a selection takes or leaves is larger: the grid's step over the
      // workers.
      return 10 * 12 * 0x1.0p-24;
  }
}

/// How far workers × Σ means + Σ residuals may be from Σ gradients, per worker.
double balance_tolerance(const OptionCase& one, const sync::Member& member) {
  const codec::Kind kind = codec::parse_spec(member.codec)->kind;
  const bool is_half = kind == codec::Kind::kFp16 || kind == codec::Kind::kBf16;
  // A sum of payloads is rounded to their type, and no residual knows of it.
  if (is_half && sums_payloads(one.option)) return kSteps * mean_tolerance(member);
  return kSteps * 10 * 12 * 0x1.0p-24;
}

/// What one worker shows the others after a case, as floats: complaints so far, whether the case
/// failed here, each step's results, the residual's share.
struct Report {
  static constexpr std::size_t kHead = 2;
  std::vector<float> words = {};
};

/// One worker on its way through all cases.
class Worker {
 public:
  Worker(sync::Fabric& fabric, Textbook& textbook) : fabric_(fabric), textbook_(textbook) {}

  std::vector<std::string> run() {
    for (std::size_t i = 0; i < textbook_.cases().size() && !over_; ++i) {
      run_case(textbook_.cases()[i], textbook_.lesson(i));
    }
    return std::move(complaints_);
  }

 private:
  template <class... Parts>
  void complain(const OptionCase& one, const Parts&... parts) {
    if (complaints_.size() >= kEnough) return;
    complaints_.push_back(Status::error(Code::kInternal, one.to_text(), ", rank ", fabric_.rank(),
                                        " of ", fabric_.topology().machines, "x",
                                        fabric_.topology().workers_per_machine, ": ", parts...)
                              .message());
  }

  static std::size_t elements_of(const OptionCase& one) {
    std::size_t elements = 0;
    for (const sync::Member& member : one.members) elements += member.shape.elements();
    return elements;
  }

  void run_case(const OptionCase& one, const Lesson& lesson) {
    if (!lesson.failure.empty()) complain(one, "the textbook has no answer: ", lesson.failure);
    Report report;
    report.words.assign(Report::kHead + (kSteps + 1) * elements_of(one), 0.0F);
    const bool ran = lesson.failure.empty() && run_steps(one, lesson, report);
    report.words[0] = static_cast<float>(complaints_.size());
    report.words[1] = ran ? 0.0F : 1.0F;
    const auto reports = exchange(one, report);
    if (reports.empty()) return;
    bool all_ran = true;
    for (const Report& other : reports) {
      if (other.words[0] >= static_cast<float>(kEnough)) over_ = true;
      if (other.words[1] != 0.0F) all_ran = false;
    }
    if (!all_ran) return;
    check_equal(one, reports);
    if (one.compared) check_means(one, lesson, report);
    // What is the same on all workers is judged by one.
    if (fabric_.rank() == 0) check_residuals(one, lesson, reports);
  }

  bool run_steps(const OptionCase& one, const Lesson& lesson, Report& report) {
    const sync::MessageSpec spec{
        .members = one.members, .option = one.option, .seed = kSeed, .feedback = one.feedback};
    auto made = sync::Message::make(spec, fabric_);
    if (!made) {
      complain(one, "cannot be made: ", made.error().to_string());
      return false;
    }
    sync::Message& message = **made;
    auto out = report.words.begin() + Report::kHead;
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      std::vector<std::vector<float>> gradients;
      for (const sync::Member& member : one.members) {
        gradients.push_back(gradient_of(lesson, member, fabric_.rank(), step));
      }
      const std::vector<std::span<float>> spans(gradients.begin(), gradients.end());
      const SentBytes before = fabric_.sent_bytes();
      const auto outcome = message.run(step, spans);
      if (!outcome || *outcome != sync::Outcome::kDone) {
        complain(one, "step ", step, ": wanted an end, got ",
                 outcome ? "a gradient that is not finite" : outcome.error().to_string());
        return false;
      }
      check_bytes(one, step, message, before);
      for (const auto& gradient : gradients) out = std::ranges::copy(gradient, out).out;
    }
    for (std::size_t i = 0; i < one.members.size(); ++i) {
      const std::size_t elements = one.members[i].shape.elements();
      message.copy_residual(i, std::span(&*out, elements));
      out += static_cast<std::ptrdiff_t>(elements);
    }
    return true;
  }

  void check_bytes(const OptionCase& one, std::uint64_t step, const sync::Message& message,
                   const SentBytes& before) {
    const SentBytes after = fabric_.sent_bytes();
    const SentBytes promised = message.promised_bytes(step);
    const std::uint64_t intra = after.intra - before.intra;
    const std::uint64_t inter = after.inter - before.inter;
    if (intra == promised.intra && inter == promised.inter) return;
    complain(one, "step ", step, ": promised ", promised.intra, " B intra and ", promised.inter,
             " B inter, sent ", intra, " and ", inter);
  }

  /// Every worker's report, by rank; none when the group has failed.
  std::vector<Report> exchange(const OptionCase& one, const Report& report) {
    std::vector<float> all(report.words.size() * fabric_.topology().workers());
    const Status status = fabric_.group(plan::Phase::kFlat)
                              .run({.kind = CollectiveKind::kAllGather,
                                    .type = DataType::kFloat32,
                                    .in = std::as_bytes(std::span(report.words)),
                                    .out = std::as_writable_bytes(std::span(all)),
                                    .tensor = "reports"});
    if (!status.is_ok()) {
      complain(one, "no report of the others: ", status.to_string());
      over_ = true;
      return {};
    }
    std::vector<Report> reports;
    for (auto at = all.begin(); at != all.end();) {
      const auto end = at + static_cast<std::ptrdiff_t>(report.words.size());
      reports.push_back({.words = {at, end}});
      at = end;
    }
    return reports;
  }

  void check_equal(const OptionCase& one, const std::vector<Report>& reports) {
    const std::size_t results = kSteps * elements_of(one);
    const std::vector<float>& own = reports[fabric_.rank()].words;
    for (std::size_t i = Report::kHead; i < Report::kHead + results; ++i) {
      const float wanted = reports[0].words[i];
      if (std::bit_cast<std::uint32_t>(own[i]) == std::bit_cast<std::uint32_t>(wanted)) continue;
      complain(one, "step ", (i - Report::kHead) / elements_of(one), ", element ",
               (i - Report::kHead) % elements_of(one), " of the message: wanted rank 0's bits, ",
               wanted, ", got ", own[i], ", off by ", own[i] - wanted);
      return;
    }
  }

  void check_means(const OptionCase& one, const Lesson& lesson, const Report& report) {
    std::size_t at = Report::kHead;
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      for (std::size_t m = 0; m < one.members.size(); ++m) {
        const double tolerance = mean_tolerance(one.members[m]);
        for (std::size_t i = 0; i < lesson.means[step][m].size(); ++i, ++at) {
          const float want = lesson.means[step][m][i];
          const float got = report.words[at];
          if (std::fabs(static_cast<double>(got) - want) <= tolerance) continue;
          complain(one, "step ", step, ", member ", m, ", element ", i, ": wanted ", want, ", got ",
                   got, " (tolerance ", tolerance, ")");
          return;
        }
      }
    }
  }

  void check_residuals(const OptionCase& one, const Lesson& lesson,
                       const std::vector<Report>& reports) {
    const double workers = fabric_.topology().workers();
    const std::size_t stride = elements_of(one);
    std::size_t at = Report::kHead;  // in the first step's results
    for (std::size_t m = 0; m < one.members.size(); ++m) {
      for (std::size_t i = 0; i < lesson.gradients[m].size(); ++i, ++at) {
        double kept = 0.0;
        for (const Report& report : reports) kept += report.words[at + kSteps * stride];
        double applied = 0.0;
        for (std::uint64_t step = 0; step < kSteps; ++step) {
          applied += workers * reports[0].words[at + step * stride];
        }
        const double lost = applied + kept - lesson.gradients[m][i];
        if (lesson.conserves &&
            !(std::fabs(lost) <= workers * balance_tolerance(one, one.members[m]))) {
          complain(one, "member ", m, ", element ", i, ": applied ", applied, " and kept ", kept,
                   " of gradients worth ", lesson.gradients[m][i], ", off by ", lost);
          return;
        }
        const double want = lesson.unapplied[m][i];
        if (one.compared &&
            !(std::fabs(kept - want) <= workers * kSteps * mean_tolerance(one.members[m]))) {
          complain(one, "member ", m, ", element ", i, ": wanted residuals of ", want, ", got ",
                   kept);
          return;
        }
      }
    }
  }

  sync::Fabric& fabric_;
  Textbook& textbook_;
  std::vector<std::string> complaints_;
  bool over_ = false;
};

}  // namespace

std::string OptionCase::to_text() const {
  std::string text = plan::to_text(option);
  for (const sync::Member& member : members) {
    text.append(", ").append(member.codec).append(" on ").append(member.shape.to_string());
  }
  if (feedback) text.append(*feedback ? ", with feedback" : ", without feedback");
  return text;
}

Textbook::Textbook(std::vector<OptionCase> cases, const comm::Topology& topology)
    : cases_(std::move(cases)), topology_(topology), pages_(new Page[cases_.size()]) {}

const Lesson& Textbook::lesson(std::size_t index) {
  Page& page = pages_[index];
  std::call_once(page.once, [&] {
    Lesson& lesson = page.lesson;
    try {
      for (unsigned draw = 0; draw < kDraws; ++draw) {
        lesson.gradient_seed = kSeed + 100'000'007 * (index + 1) + 10'000'019 * draw;
        const double closest = work_out(cases_[index], topology_, lesson);
        if (!cases_[index].compared || closest > kClearCall) return;
      }
      lesson.failure = "every draw of gradients leaves a decision to a last bit";
    } catch (const std::runtime_error& error) {
      lesson.failure = error.what();
    }
  });
  return page.lesson;
}

std::string why_not(const plan::Option& option, const sync::Member& member,
                    const comm::Topology& topology) {
  return plan::why_not(option, plan::codec_fit(*codec::parse_spec(member.codec)), member.shape,
                       {.machines = topology.machines, .workers = topology.workers_per_machine});
}

std::vector<OptionCase> cases_of(const CaseChoice& choice, const comm::Topology& topology) {
  std::vector<OptionCase> cases;
  for (const plan::Option& option : choice.options) {
    for (const std::string& codec : choice.codecs) {
      for (const Shape& shape : choice.shapes) {
        const sync::Member member{.name = "g", .shape = shape, .tensor = 5, .codec = codec};
        if (!why_not(option, member, topology).empty()) continue;
        cases.push_back({.option = option,
                         .members = {member},
                         .feedback = choice.feedback,
                         .compared = choice.compared});
      }
    }
  }
  return cases;
}

std::vector<std::string> run_cases(sync::Fabric& fabric, Textbook& textbook) {
  return Worker(fabric, textbook).run();
}

std::vector<std::string> run_options_on(sync::Fabric& fabric, std::span<const plan::Option> options,
                                        const std::vector<std::string>& codecs) {
  Textbook textbook(cases_of({.options = options,
                              .codecs = codecs,
                              .shapes = {Shape::flat(37), Shape{7, 5}, Shape::flat(3)}},
                             fabric.topology()),
                    fabric.topology());
  return run_cases(fabric, textbook);
}

std::string listed(const std::vector<std::string>& complaints) {
  std::string text;
  for (const std::string& complaint : complaints) text.append(complaint).append("\n");
  return text;
}

}  // namespace gradpress::test
