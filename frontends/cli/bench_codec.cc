#include "bench_codec.h"

#include <gradpress/codec.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "codec_timer.h"
#include "kernels/target.h"
#include "machine.h"
#include "sizes.h"
#include "verbs.h"

namespace gradpress::cli {

namespace {

struct Options {
  std::vector<std::string> codecs;
  std::string target;
  std::string json;
  std::string least_bytes = "64M";
  std::string most_bytes;
  double factor = 4.0;
  Turns turns;
};

Result<std::vector<std::unique_ptr<const Codec>>> chosen_codecs(const Options& options) {
  std::vector<std::string> texts = options.codecs;
  if (texts.empty()) {
    for (const CodecHelp& help : codec_help()) texts.emplace_back(help.example);
  }
  std::vector<std::unique_ptr<const Codec>> codecs;
  for (const std::string& text : texts) {
    auto codec = make_codec(text);
    if (!codec) return tl::unexpected(codec.error());
    codecs.push_back(std::move(*codec));
  }
  return codecs;
}

void print_heading(const std::string& target) {
  std::printf("# gradpress bench codec: %s, %s\n# kernels %s, one thread\n", date_text().c_str(),
              machine_text().c_str(), target.c_str());
  std::printf("# times in copies: 1.00 is one memcpy of the gradient; median (least to most)\n#\n");
  std::printf("%-16s %10s  %-18s %6s  %-18s %10s %7s\n", "# codec", "elements", "encode", "first",
              "decode-add", "payload B", "ratio");
}

std::string spread_text(const Spread& spread) {
  char text[64];
  std::snprintf(text, sizeof text, "%5.2f (%.2f-%.2f)", spread.median, spread.least, spread.most);
  return text;
}

void print_row(const std::string& name, const CodecCost& cost) {
  std::printf("%-16s %10zu  %-18s %6.2f  %-18s %10zu %7.1f\n", name.c_str(), cost.elements,
              spread_text(cost.encode).c_str(), cost.first_encode, spread_text(cost.decode).c_str(),
              cost.payload_bytes,
              4.0 * static_cast<double>(cost.elements) / static_cast<double>(cost.payload_bytes));
  std::fflush(stdout);
}

Json row_json(const std::string& name, const CodecCost& cost, const std::string& target) {
  return {{"codec", name},
          {"elements", cost.elements},
          {"memcpy_us", cost.copy_us},
          {"rounds", cost.rounds},
          {"encode_vs_memcpy", cost.encode.median},
          {"encode_min", cost.encode.least},
          {"encode_max", cost.encode.most},
          {"first_encode_vs_memcpy", cost.first_encode},
          {"decode_vs_memcpy", cost.decode.median},
          {"decode_min", cost.decode.least},
          {"decode_max", cost.decode.most},
          {"payload_bytes", cost.payload_bytes},
          {"error_feedback", cost.feedback},
          {"target", target}};
}

/// What stands beside the codecs for comparison: the bare pass, and the standard library's
/// selection.
Json compare(CodecTimer& timer, std::size_t elements, const Turns& turns) {
  Json rows = Json::array();
  const auto add = [&](const char* name, const Spread& spread) {
    std::printf("#   %-52s %s\n", name, spread_text(spread).c_str());
    rows.push_back({{"name", name}, {"elements", elements}, {"vs_memcpy", spread.median}});
  };
  std::printf("# for comparison, in copies:\n");
  add("one pass r += g, the least with error feedback", timer.update_pass(turns));
  const Turns few{.timed = std::max(3U, turns.timed / 8), .warmup = 1};
  add("std::nth_element on |g|, largest 1 %", timer.nth_element(few, elements / 100));
  add("std::nth_element on |g|, largest 0.1 %", timer.nth_element(few, elements / 1000));
  return rows;
}

Status run(const Options& options) {
  std::optional<Result<kernels::ScopedTarget>> pinned;
  if (!options.target.empty()) {
    pinned.emplace(kernels::ScopedTarget::pin(options.target));
    if (!pinned->has_value()) return pinned->error();
  }
  const auto least = parse_bytes(options.least_bytes);
  if (!least) return least.error();
  const auto most = options.most_bytes.empty() ? least : parse_bytes(options.most_bytes);
  if (!most) return most.error();
  if (!options.json.empty()) {
    const Status writable = can_write(options.json);
    if (!writable.is_ok()) return writable;
  }
  const auto codecs = chosen_codecs(options);
  if (!codecs) return codecs.error();

  const std::string target = kernels::active_target();
  print_heading(target);
  Json rows = Json::array();
  Json comparisons = Json::array();
  Spread gbs;
  for (auto bytes = static_cast<double>(*least); bytes <= static_cast<double>(*most);
       bytes *= options.factor) {
    const auto elements = static_cast<std::size_t>(bytes / sizeof(float));
    CodecTimer timer(elements);
    for (const auto& codec : *codecs) {
      const auto cost = timer.cost(*codec, options.turns);
      if (!cost) return cost.error();
      print_row(codec->name(), *cost);
      rows.push_back(row_json(codec->name(), *cost, target));
    }
    for (const Json& row : compare(timer, elements, options.turns)) comparisons.push_back(row);
    gbs = timer.memcpy_gbs();
    std::printf("# memcpy of %zu B: %.2f GB/s (%.2f-%.2f)\n", elements * sizeof(float), gbs.median,
                gbs.least, gbs.most);
  }
  if (options.json.empty()) return {};
  return write_json(options.json, Json{{"format", "gradpress-bench-codec-1"},
                                       {"date", date_text()},
                                       {"machine", machine_text()},
                                       {"target", target},
                                       {"memcpy_gbs", gbs.median},
                                       {"memcpy_gbs_min", gbs.least},
                                       {"memcpy_gbs_max", gbs.most},
                                       {"codecs", rows},
                                       {"comparisons", comparisons}});
}

}  // namespace

void add_bench_codec(CLI::App& bench, int& exit_code) {
  CLI::App* verb = bench.add_subcommand("codec", "encode and decode of every codec, in memcpys");
  auto options = std::make_shared<Options>();
  verb->add_option("--codec", options->codecs, "codecs to time, comma-separated; default: all")
      ->delimiter(',');
  verb->add_option("-b", options->least_bytes, "smallest gradient in bytes (K, M, G)")
      ->capture_default_str();
  verb->add_option("-e", options->most_bytes, "largest gradient; default: the smallest alone");
  verb->add_option("-f", options->factor, "factor between sizes")
      ->check(CLI::Range(1.1, 1024.0))
      ->capture_default_str();
  verb->add_option("-n", options->turns.timed, "timed turns")
      ->check(CLI::Range(1U, 100000U))
      ->capture_default_str();
  verb->add_option("-w", options->turns.warmup, "turns before the timed ones")
      ->check(CLI::Range(0U, 1000U))
      ->capture_default_str();
  verb->add_option("--target", options->target,
                   "kernel target to pin: AVX2, SSE4, …; default: best");
  verb->add_option("--json", options->json, "also write the figures to this file");
  verb->footer(
      "Each codec is verified before it is timed, on eight gradients in turn, 64 MiB each.\n"
      "Example: gradpress bench codec --codec efsign,topk:0.01,acpsgd:4 --json codecs.json");
  verb->callback([options, &exit_code] {
    const Status status = run(*options);
    if (status.is_ok()) return;
    std::fprintf(stderr, "gradpress bench codec: %s\n", status.message().c_str());
    exit_code = status.code() == Code::kInvalidArgument ? kUsage : kFailed;
  });
}

}  // namespace gradpress::cli
