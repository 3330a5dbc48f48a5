// Messages through options, on whatever world a worker belongs to, held against the textbook.
//
// One call per worker: as threads of one process they share a Textbook, as processes each has its
// own, which says the same.
#pragma once

#include <gradpress/shape.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/topology.h"
#include "plan/option.h"
#include "sync/fabric.h"
#include "sync/message.h"

namespace gradpress::test {

/// One message through one option, for a few steps.
struct OptionCase {
  plan::Option option = {};
  std::vector<sync::Member> members = {};
  std::optional<bool> feedback = {};
  /// Whether results and residuals are compared with the textbook's; what holds for every codec is
  /// checked anyway.
  bool compared = true;

  /// What a complaint begins with.
  std::string to_text() const;
};

/// What must come of a case.
struct Lesson {
  std::uint64_t gradient_seed = 0;
  std::vector<std::vector<std::vector<float>>> means = {};  ///< [step][member]
  std::vector<std::vector<double>> gradients = {};          ///< [member], of all workers and steps
  std::vector<std::vector<double>> unapplied = {};          ///< [member], after the last step
  bool conserves = false;
  std::string failure = {};  ///< why there is no lesson
};

/// The lessons of a list of cases, each worked out by the first who asks for it.
///
/// A sign, a rounding or a selection may hang on a sum's last bit, which depends on the order of
/// summation. Gradients lie on a coarse grid, so that their sums are exact; where later sums are
/// not (of levels, norms, means of six), gradients are drawn anew until no decision is nearer than
/// kClearCall: what single precision can lead away to (tens of 2^-24) then decides nothing.
///
/// Threads: any number.
class Textbook {
 public:
  static constexpr double kClearCall = 0x1.0p-18;

  Textbook(std::vector<OptionCase> cases, const comm::Topology& topology);

  std::span<const OptionCase> cases() const { return cases_; }
  const Lesson& lesson(std::size_t index);

 private:
  struct Page {
    std::once_flag once;
    Lesson lesson;
  };

  std::vector<OptionCase> cases_;
  comm::Topology topology_;
  std::unique_ptr<Page[]> pages_;
};

/// Every option with every codec on every shape, as far as plan::why_not lets it through.
struct CaseChoice {
  std::span<const plan::Option> options = {};
  std::vector<std::string> codecs = {};
  std::vector<Shape> shapes = {};
  std::optional<bool> feedback = {};
  bool compared = true;
};
std::vector<OptionCase> cases_of(const CaseChoice& choice, const comm::Topology& topology);

/// plan::why_not's sentence for one member.
std::string why_not(const plan::Option& option, const sync::Member& member,
                    const comm::Topology& topology);

/// This worker's part in all cases; every worker of the fabric calls it with equal cases. After
/// each case the workers show each other what they hold. Complaints name the option, codec, shape,
/// rank, step, element, what was wanted and what was got; after a few of them all workers stop.
///   1. every worker holds the same bits;
///   2. workers × Σ applied + Σ residuals = Σ gradients, where there is error feedback;
///   3. the bytes that left are the bytes that were promised;
///   4. results and residuals are the textbook's, within tolerance, where they are compared.
std::vector<std::string> run_cases(sync::Fabric& fabric, Textbook& textbook);

/// The same for a worker that is alone in its process: options with codecs, on a few shapes each.
std::vector<std::string> run_options_on(sync::Fabric& fabric, std::span<const plan::Option> options,
                                        const std::vector<std::string>& codecs);

/// The complaints as one text, and nothing else.
std::string listed(const std::vector<std::string>& complaints);

}  // namespace gradpress::test
