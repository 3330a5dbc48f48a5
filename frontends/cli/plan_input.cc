#include "plan_input.h"

#include <cstdio>
#include <sstream>

#include "plan/zoo.h"
#include "verbs.h"

namespace gradpress::cli {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

Result<std::vector<codec::Spec>> parse_codecs(const std::string& text) {
  std::vector<codec::Spec> codecs;
  for (const std::string& word : split(text)) {
    const auto spec = codec::parse_spec(word);
    if (!spec) return tl::unexpected(spec.error());
    codecs.push_back(*spec);
  }
  return codecs;
}

void add_input(CLI::App& verb, PlanInput& input, bool with_codecs) {
  verb.add_option("--trace", input.trace_file, "trace file (gradpress-trace-1)");
  verb.add_option("--model", input.model, "a known model instead of a trace, e.g. bert-base");
  verb.add_option("--tflops", input.tflops, "with --model: Tflop/s a worker really computes");
  verb.add_option("--batch", input.batch, "with --model: images or tokens per worker");
  verb.add_option("--save-trace", input.save_trace, "with --model: write its trace to this file");
  verb.add_option("--cluster", input.cluster_file, "cluster file (gradpress-cluster-1)")
      ->required();
  if (!with_codecs) return;
  verb.add_option("--codec", input.codecs, "codecs to choose from, e.g. dgc:0.01,efsign")
      ->required();
  verb.add_option("--tree", input.tree, "paper, or extended: collectives may add payloads up")
      ->capture_default_str();
  verb.add_option("--fusion", input.fusion, "auto: buckets where they help; none: one per tensor")
      ->capture_default_str();
  verb.add_option("--forbid", input.forbid, "leave out places, links, collectives: host,alltoall");
  verb.add_option("--max-encodes", input.max_encodes, "at most so many encodes per tensor");
  verb.add_flag("--exempt-1d", input.exempt_vectors, "keep tensors of one dimension raw");
  verb.add_option("--exempt-below", input.exempt_below, "keep tensors of fewer elements raw");
  verb.add_option("--allow", input.rules, "PATTERN=CODECS: what matching tensors may take");
}

namespace {

Result<plan::Trace> load_trace(const PlanInput& input) {
  if (input.trace_file.empty() == input.model.empty()) {
    return fail(Code::kInvalidArgument, "wanted either --trace FILE or --model NAME, got ",
                input.model.empty() ? "none" : "both");
  }
  if (!input.trace_file.empty()) return plan::read_trace(input.trace_file);
  plan::ZooOptions options{.tflops = input.tflops};
  if (input.batch != 0) options.batch = input.batch;
  auto trace = plan::zoo_trace(input.model, options);
  if (!trace || input.save_trace.empty()) return trace;
  const Status written = plan::write_trace(input.save_trace, *trace);
  if (!written) return tl::unexpected(written);
  return trace;
}

Status load_options(const PlanInput& input, plan::PlanOptions& options) {
  if (input.tree != "paper" && input.tree != "extended") {
    return Status::error(Code::kInvalidArgument, "--tree: wanted paper or extended, got ",
                         input.tree);
  }
  if (input.fusion != "auto" && input.fusion != "none") {
    return Status::error(Code::kInvalidArgument, "--fusion: wanted auto or none, got ",
                         input.fusion);
  }
  options.tree.extended = input.tree == "extended";
  options.tree.max_encodes = input.max_encodes;
  options.fusion = input.fusion == "auto" ? plan::Fusion::kAuto : plan::Fusion::kNone;
  for (const std::string& word : split(input.forbid)) {
    if (const Status status = plan::forbid(options.tree, word); !status) return status;
  }
  options.policy.exempt_vectors = input.exempt_vectors;
  options.policy.exempt_below_elems = input.exempt_below;
  for (const std::string& text : input.rules) {
    auto rule = plan::parse_rule(text);
    if (!rule) return rule.error();
    options.policy.rules.push_back(std::move(*rule));
  }
  return {};
}

}  // namespace

Result<Loaded> load(const PlanInput& input) {
  auto trace = load_trace(input);
  if (!trace) return tl::unexpected(trace.error());
  auto cluster = plan::read_cluster(input.cluster_file);
  if (!cluster) return tl::unexpected(cluster.error());
  auto codecs = parse_codecs(input.codecs);
  if (!codecs) return tl::unexpected(codecs.error());
  Loaded loaded{.trace = std::move(*trace),
                .cluster = std::move(*cluster),
                .codecs = std::move(*codecs),
                .options = {}};
  if (const Status status = load_options(input, loaded.options); !status) {
    return tl::unexpected(status);
  }
  return loaded;
}

int report_wrong(const char* verb, const Status& status) {
  (void)std::fprintf(stderr, "gradpress %s: %s\n", verb, status.message().c_str());
  return status.code() == Code::kInvalidArgument ? kUsage : kFailed;
}

}  // namespace gradpress::cli
