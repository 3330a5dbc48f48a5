// Plans: for every tensor a codec, a way through the collectives and a message to travel in.
//
// A plan is a file (gradpress-plan-1, docs/plan_file.md) that one program makes and others run. It
// is bound to a model and a world by a hash, and refused elsewhere.
#pragma once

#include <gradpress/api.h>
#include <gradpress/shape.h>
#include <gradpress/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradpress {

/// What a plan is for: the gradients in backward order, and who exchanges them.
struct PlanTarget {
  struct Tensor {
    std::string name = {};
    Shape shape = {};
  };
  std::vector<Tensor> tensors = {};
  std::uint32_t machines = 1;
  std::uint32_t workers_per_machine = 1;
};

struct PlannedTensor {
  std::string name = {};
  Shape shape = {};
  std::string codec = "none";
  /// Actions joined by " > ": "reduce-scatter@intra1 > Comp@device > allgather@inter > …".
  std::string option = {};
  /// The message it travels in; members of one share codec and option, but for raw ones beside
  /// ACP-SGD's.
  std::uint32_t bucket = 0;
  /// The same in every second step (ACP-SGD's Q), whose messages are numbered anew. Equals `bucket`
  /// in plans that do not alternate.
  std::uint32_t bucket_q = 0;
  double predicted_us = 0.0;  ///< from its gradient's readiness to its message's end
  double measured_us = 0.0;   ///< the same once run; 0: not run
};

/// Messages in the order in which they take each link. A message stands there once for each of its
/// collectives on that link. Empty: the plan does not say, messages go by their numbers.
struct PlannedOrder {
  std::vector<std::uint32_t> intra = {};
  std::vector<std::uint32_t> inter = {};
};

struct Plan {
  std::string model = {};
  std::string cluster = {};
  std::string strategy = {};
  std::string verdict = {};    ///< one sentence: what is gained and why
  std::string tree = "paper";  ///< or "extended": collectives may add payloads up
  std::uint32_t machines = 1;
  std::uint32_t workers_per_machine = 1;
  std::vector<PlannedTensor> tensors = {};  ///< in backward order
  bool alternates = false;                  ///< two kinds of steps take turns (ACP-SGD)
  PlannedOrder order = {};
  PlannedOrder order_q = {};  ///< of every second step; empty where steps do not alternate
  double iteration_us = 0.0;  ///< predicted; the mean of both steps where they alternate
  double measured_us = 0.0;   ///< once run; 0: not run
};

/// 16 hexadecimal digits over names, shapes, machines, workers and tree.
GRADPRESS_API std::string plan_hash(const PlanTarget& target, std::string_view tree);

/// Reads a plan for `target`. Entries address tensors by name, or by a pattern in which * stands
/// for any text and ? for one character; the first entry that fits decides. In the result every
/// tensor of the target stands once, by its name.
/// Errors: kInvalidArgument, naming file and JSON path: another model or world (with what differs),
/// a tensor that no entry addresses, an entry that addresses none, a missing field, an option that
/// does not fit its codec, members of a bucket that differ. Unknown fields are ignored.
GRADPRESS_API Result<Plan> load_plan(const std::string& file, const PlanTarget& target);
/// The same from text; `origin` stands in errors where the file's name would.
GRADPRESS_API Result<Plan> parse_plan(std::string_view text, std::string_view origin,
                                      const PlanTarget& target);
/// Errors: kInvalidArgument when the file cannot be written.
GRADPRESS_API Status save_plan(const std::string& file, const Plan& plan);

struct PlanRequest {
  std::string trace_file = {};           ///< gradpress-trace-1
  std::string cluster_file = {};         ///< gradpress-cluster-1
  std::vector<std::string> codecs = {};  ///< to choose from: "dgc:0.01", "efsign", …
  std::string strategy = "best";
  bool extended_tree = false;
  bool fusion = true;  ///< tensors may share messages
};

/// Decides for every tensor of the trace. Deterministic.
/// Cost: milliseconds for some hundred tensors. Threads: any number at once.
/// Errors: kInvalidArgument: unreadable files, unknown strategy or codec, missing costs.
GRADPRESS_API Result<Plan> make_plan(const PlanRequest& request);

}  // namespace gradpress
