// What the planning verbs read: a trace or a model, a cluster, codecs, and the tree to plan in.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plan/cluster.h"
#include "plan/planner.h"
#include "plan/trace.h"

namespace gradpress::cli {

struct PlanInput {
  std::string trace_file, model, cluster_file, codecs, save_trace;
  double tflops = 0.0;
  std::uint64_t batch = 0;
  std::string tree = "paper", fusion = "auto", forbid;
  unsigned max_encodes = plan::Option::kMaxActions;
  bool exempt_vectors = false;
  std::uint64_t exempt_below = 0;
  std::vector<std::string> rules;
};

/// What came of it.
struct Loaded {
  plan::Trace trace;
  plan::Cluster cluster;
  std::vector<codec::Spec> codecs;
  plan::PlanOptions options;

  plan::Setting setting() const { return {trace, cluster, codecs}; }
};

void add_input(CLI::App& verb, PlanInput& input, bool with_codecs);
Result<Loaded> load(const PlanInput& input);

/// "dgc:0.01,efsign". Errors: kInvalidArgument.
Result<std::vector<codec::Spec>> parse_codecs(const std::string& text);
/// Words of a comma-separated list.
std::vector<std::string> split(const std::string& text);

/// Prints "gradpress VERB: message" to the error stream; returns the exit code of wrong input.
int report_wrong(const char* verb, const Status& status);

}  // namespace gradpress::cli
