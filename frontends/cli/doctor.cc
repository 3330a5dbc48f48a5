#include <gradpress/version.h>
#include <gradpress/world.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"
#include "codec_timer.h"
#include "comm/local/link.h"
#include "comm/process.h"
#include "kernels/target.h"
#include "loopback.h"
#include "machine.h"
#include "plan/planner.h"
#include "plan_input.h"
#include "verbs.h"

namespace gradpress::cli {

namespace {

namespace fs = std::filesystem;

/// The message that is judged: 2500 x 2500 floats, 25 MB.
constexpr std::uint64_t kSide = 2500;
constexpr std::size_t kSmall = std::size_t{1} << 17;
constexpr std::size_t kLarge = std::size_t{1} << 20;

struct Arguments {
  std::string link;
  unsigned workers = 4;
  std::string codecs = "fp16,int8,efsign,topk:0.01,dgc:0.01,redsync:0.01,acpsgd:4,powersgd:4";
  std::string json;
};

/// One thing that may be here, and what to do when it is not and is wanted.
struct Check {
  std::string name;
  bool present = false;
  std::string found = {};
  std::string advice = {};
};

/// Beside this program, then along PATH; empty: nowhere.
std::string find_program(const std::string& name) {
  std::error_code ignored;
  std::vector<fs::path> folders = {fs::read_symlink("/proc/self/exe", ignored).parent_path()};
  const auto path = comm::process_environment()("PATH");
  for (const std::string& folder : CLI::detail::split(path.value_or(""), ':')) {
    folders.emplace_back(folder);
  }
  for (const fs::path& folder : folders) {
    if (!folder.empty() && ::access((folder / name).c_str(), X_OK) == 0) return folder / name;
  }
  return {};
}

Check program_check(const std::string& what, const std::string& name, const std::string& advice) {
  const std::string found = find_program(name);
  return {.name = what, .present = !found.empty(), .found = found, .advice = advice};
}

Check folder_check(const std::string& what, const fs::path& folder, const std::string& advice) {
  std::error_code ignored;
  const bool present = !folder.empty() && fs::is_directory(folder, ignored);
  return {.name = what, .present = present, .found = present ? folder : "", .advice = advice};
}

std::vector<Check> look_around() {
  const std::vector<std::string> targets = kernels::supported_targets();
  std::vector<Check> checks = {{.name = "SIMD", .present = true, .found = kernels::active_target()},
                               {.name = "cores",
                                .present = std::thread::hardware_concurrency() > 1,
                                .found = std::to_string(std::thread::hardware_concurrency()),
                                .advice = "with one core, codec work and communication take turns"},
                               {.name = "backend local",
                                .present = true,
                                .found = "threads of one process, emulated links"}};
  const auto backends = world_backends();
  const auto add_backend = [&](const char* name, const char* found, const char* advice) {
    const bool present = std::ranges::find(backends, name) != backends.end();
    checks.push_back({.name = std::string("backend ") + name,
                      .present = present,
                      .found = present ? found : "",
                      .advice = advice});
  };
  add_backend("gloo", "TCP", "install libgloo-dev and build again");
  add_backend("mpi", "modules are beside this program or installed",
              "install libopenmpi-dev or libmpich-dev and build from source");
  checks.push_back(
      program_check("trainer", "gradpress-train",
                    "install libtorch-dev and build from source; needed by train alone"));
  checks.push_back(program_check("mpirun", "mpirun", "install openmpi-bin or mpich"));
  checks.push_back(program_check("chromium", "chromium",
                                 "install chromium; needed by the tests of pages alone"));
  checks.push_back({.name = "root",
                    .present = ::geteuid() == 0,
                    .found = ::geteuid() == 0 ? "can make hosts with shaped links" : "",
                    .advice = "become root; needed by ./run bench multihost and replay alone"});
  checks.push_back(folder_check("Fashion-MNIST", "/usr/share/datasets/fashion-mnist",
                                "install dataset-fashion-mnist; needed to train on it"));
  const auto data = comm::process_environment()("GRADPRESS_DATA");
  checks.push_back(folder_check("traces and texts", data.value_or(""),
                                "set GRADPRESS_DATA to their folder; tables are made from them"));
  return checks;
}

/// A codec's time at one size: the least of a few short turns, since what else a machine does
/// meanwhile says nothing of the codec. The cost model wants that of one encode.
plan::CostPoint point_of(const CodecCost& cost) {
  return {.elements = cost.elements,
          .encode_us = cost.encode.least * cost.copy_us / cost.rounds,
          .decode_us = cost.decode.least * cost.copy_us};
}

struct Speeds {
  double memcpy_gbs = 0.0;
  std::vector<std::vector<plan::CostPoint>> points = {};  ///< by codec, of both sizes
  std::vector<unsigned> rounds = {};                      ///< by codec: encodes of one step
};

/// Errors: CodecTimer's: a codec that gives a wrong answer here.
Result<Speeds> measure_speeds(const std::vector<std::string>& texts) {
  Speeds speeds{.points = std::vector<std::vector<plan::CostPoint>>(texts.size()),
                .rounds = std::vector<unsigned>(texts.size())};
  for (const std::size_t elements : {kSmall, kLarge}) {
    CodecTimer timer(elements);
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto codec = make_codec(texts[i]);
      if (!codec) return tl::unexpected(codec.error());
      const auto cost = timer.cost(**codec, {.timed = 9, .warmup = 1});
      if (!cost) return tl::unexpected(cost.error());
      speeds.points[i].push_back(point_of(*cost));
      speeds.rounds[i] = cost->rounds;
    }
    speeds.memcpy_gbs = timer.memcpy_gbs().most;
  }
  return speeds;
}

/// What the cost model says of one 25 MB gradient with this codec, between these workers.
struct Judgement {
  std::string codec = {};
  double step_us = 0.0;  ///< encoded by its fastest way
  double raw_us = 0.0;
  std::string option = {};
  bool pays() const { return step_us < raw_us; }
};

Result<Judgement> judge(const codec::Spec& spec, const plan::Cluster& cluster) {
  const plan::Trace trace{
      .model = "25 MB",
      .source = {},
      .tensors = {{.name = "gradient", .shape = Shape{kSide, kSide}, .elements = kSide * kSide}}};
  plan::PlanOptions options{.strategy = "all"};
  options.tree.extended = true;
  const std::vector<codec::Spec> codecs = {spec};
  const auto made = plan::make_plan({trace, cluster, codecs}, options);
  if (!made) return tl::unexpected(made.error());
  return Judgement{.codec = codec::to_text(spec),
                   .step_us = made->iteration_us,
                   .raw_us = made->raw_us,
                   .option = plan::to_text(made->strategy.choices.front().option)};
}

struct Network {
  plan::LinkModel::Rate rate = {};
  bool measured = false;
};

Result<Network> find_link(const std::string& text) {
  if (text.empty()) {
    const auto loopback = measure_loopback();
    if (!loopback) return tl::unexpected(loopback.error());
    return Network{.rate = {.latency_us = loopback->latency_us, .gbps = loopback->gbps},
                   .measured = true};
  }
  const auto link = comm::parse_link(text);
  if (!link) return tl::unexpected(link.error());
  if (link->bits_per_second == 0) {
    return fail(Code::kInvalidArgument, "--link: wanted a rate such as 1gbit,50us, got ", text);
  }
  return Network{
      .rate = {.latency_us = std::chrono::duration<double, std::micro>(link->latency).count(),
               .gbps = static_cast<double>(link->bits_per_second) / 1e9}};
}

Result<std::vector<Judgement>> judge_all(const Arguments& arguments, const Speeds& speeds,
                                         const Network& network) {
  const auto specs = parse_codecs(arguments.codecs);
  if (!specs) return tl::unexpected(specs.error());
  plan::Cluster cluster;
  cluster.topology = {.machines = arguments.workers, .workers = 1};
  cluster.intra.link = network.rate;
  cluster.inter.link = network.rate;
  for (std::size_t i = 0; i < specs->size(); ++i) {
    const plan::CostCurve curve(speeds.points[i]);
    cluster.codec_costs[codec::to_text((*specs)[i])] = {curve, curve};
  }
  std::vector<Judgement> judgements;
  for (const codec::Spec& spec : *specs) {
    auto judgement = judge(spec, cluster);
    if (!judgement) return tl::unexpected(judgement.error());
    judgements.push_back(std::move(*judgement));
  }
  return judgements;
}

std::string verdict_of(const std::vector<Judgement>& judgements) {
  const auto fastest = std::ranges::min_element(judgements, {}, &Judgement::step_us);
  char text[100];
  if (fastest->pays()) {
    std::snprintf(text, sizeof text, "compression would pay: %s takes %.0f %% of the raw time",
                  fastest->codec.c_str(), 100.0 * fastest->step_us / fastest->raw_us);
  } else {
    std::snprintf(text, sizeof text,
                  "do not compress: on this link the raw all-reduce is faster than every codec");
  }
  return text;
}

void print_checks(const std::vector<Check>& checks) {
  for (const Check& check : checks) {
    const std::string& text = check.present ? check.found : check.advice;
    std::printf("  %-7s %-17s %.72s\n", check.present ? "yes" : "no", check.name.c_str(),
                text.c_str());
  }
}

void print_judgements(const std::vector<Judgement>& judgements, const Speeds& speeds) {
  std::printf("  %-14s %11s %11s %11s %8s\n", "codec", "encode GB/s", "decode GB/s", "25 MB, ms",
              "of raw");
  std::printf("  %-14s %11s %11s %11.1f %8s\n", "none", "", "", judgements.front().raw_us / 1e3,
              "100 %");
  for (std::size_t i = 0; i < judgements.size(); ++i) {
    const plan::CostPoint& point = speeds.points[i].back();
    const double bytes = 4.0 * static_cast<double>(point.elements);
    std::printf("  %-14s %11.2f %11.2f %11.1f %6.0f %%  %s\n", judgements[i].codec.c_str(),
                bytes / (point.encode_us * speeds.rounds[i] * 1e3), bytes / (point.decode_us * 1e3),
                judgements[i].step_us / 1e3, 100.0 * judgements[i].step_us / judgements[i].raw_us,
                judgements[i].pays() ? "pays" : "");
  }
}

Json to_json(const std::vector<Check>& checks) {
  Json rows = Json::array();
  for (const Check& check : checks) {
    rows.push_back({{"name", check.name},
                    {"present", check.present},
                    {"found", check.found},
                    {"advice", check.present ? "" : check.advice}});
  }
  return rows;
}

Json to_json(const std::vector<Judgement>& judgements, const Speeds& speeds) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < judgements.size(); ++i) {
    const plan::CostPoint& point = speeds.points[i].back();
    rows.push_back({{"codec", judgements[i].codec},
                    {"elements", point.elements},
                    {"rounds", speeds.rounds[i]},
                    {"encode_us", point.encode_us},
                    {"decode_us", point.decode_us},
                    {"step_us", judgements[i].step_us},
                    {"pays", judgements[i].pays()},
                    {"option", judgements[i].option}});
  }
  return rows;
}

Status run(const Arguments& arguments) {
  if (!arguments.json.empty()) {
    if (Status status = can_write(arguments.json); !status) return status;
  }
  const auto network = find_link(arguments.link);
  if (!network) return network.error();
  const std::vector<Check> checks = look_around();
  std::printf("gradpress %s on %s, %s\n", std::string(version()).c_str(), machine_text().c_str(),
              date_text().c_str());
  print_checks(checks);
  const auto speeds = measure_speeds(split(arguments.codecs));
  if (!speeds) return speeds.error();
  const auto judgements = judge_all(arguments, *speeds, *network);
  if (!judgements) return judgements.error();
  const std::string verdict = verdict_of(*judgements);
  std::printf("\nmemory: %.1f GB/s (memcpy of %zu MiB, one thread)\n", speeds->memcpy_gbs,
              4 * kLarge >> 20);
  std::printf("link: %.3f Gbit/s, %.1f us (%s); for %u machines of one worker:\n",
              network->rate.gbps, network->rate.latency_us,
              network->measured ? "this machine's loopback, measured" : "as given",
              arguments.workers);
  print_judgements(*judgements, *speeds);
  std::printf("\n%s\n", verdict.c_str());
  if (arguments.json.empty()) return {};
  return write_json(arguments.json, {{"format", "gradpress-doctor-1"},
                                     {"date", date_text()},
                                     {"machine", machine_text()},
                                     {"version", version()},
                                     {"target", kernels::active_target()},
                                     {"checks", to_json(checks)},
                                     {"memcpy_gbs", speeds->memcpy_gbs},
                                     {"link",
                                      {{"gbps", network->rate.gbps},
                                       {"latency_us", network->rate.latency_us},
                                       {"measured", network->measured}}},
                                     {"workers", arguments.workers},
                                     {"bytes", 4 * kSide * kSide},
                                     {"raw_us", judgements->front().raw_us},
                                     {"codecs", to_json(*judgements, *speeds)},
                                     {"verdict", verdict}});
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand(
      "doctor", "what is here, what is missing, and whether compression would pay");
  auto arguments = std::make_shared<Arguments>();
  verb->add_option("--link", arguments->link,
                   "RATE[,LATENCY] between machines, such as 1gbit,50us; default: this machine's "
                   "loopback, measured");
  verb->add_option("--workers", arguments->workers, "machines with one worker each")
      ->check(CLI::Range(2U, 4096U))
      ->capture_default_str();
  verb->add_option("--codecs", arguments->codecs, "codecs to judge, comma-separated")
      ->capture_default_str();
  verb->add_option("--json", arguments->json, "also write the figures to this file");
  verb->footer(
      "Codecs are verified and timed on this machine, the fastest of nine turns at each of two\n"
      "sizes; what a step would take is computed by the cost model for one gradient of 25 MB with\n"
      "nothing beside it. Exit 1: a codec is wrong here.\n"
      "Example: gradpress doctor --link 1gbit,50us --workers 8");
  verb->callback([arguments, &exit_code] {
    const Status status =
        split(arguments->codecs).empty()
            ? Status::error(Code::kInvalidArgument, "--codecs: wanted at least one codec")
            : run(*arguments);
    if (status.is_ok()) return;
    std::fprintf(stderr, "gradpress doctor: %s\n", status.message().c_str());
    exit_code = status.code() == Code::kInvalidArgument ? kUsage : kFailed;
  });
}

}  // namespace gradpress::cli
