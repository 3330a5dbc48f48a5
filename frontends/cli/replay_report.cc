#include "replay_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <span>
#include <utility>

#include "machine.h"
#include "page.h"
#include "perfetto.h"

namespace gradpress::cli {

namespace {

using LaneTimes = std::array<double, plan::kLanes>;
LaneTimes busy_us(std::span<const plan::Span> spans) {
  LaneTimes busy{};
  for (const plan::Span& span : spans) {
    busy[static_cast<std::size_t>(span.lane)] += span.end_us - span.start_us;
  }
  return busy;
}

/// One tensor's way, from the step's beginning on; work is its whole message's.
struct TensorTimes {
  double ready_us = 0.0;
  double done_us = 0.0;
  double codec_us = 0.0;
  double comm_us = 0.0;
};

std::vector<TensorTimes> tensor_times(const Piece& piece, const engine::Program& program,
                                      std::span<const plan::Span> spans, double shift_us) {
  std::vector<TensorTimes> messages(program.messages.size());
  std::vector<TensorTimes> tensors(piece.trace.tensors.size());
  for (const plan::Span& span : spans) {
    const double end_us = shift_us + span.end_us;
    if (span.kind == plan::SpanKind::kBackward) {
      tensors[span.tensor].ready_us = end_us;
      continue;
    }
    TensorTimes& message = messages[span.message];
    message.done_us = std::max(message.done_us, end_us);
    (span.kind == plan::SpanKind::kComm ? message.comm_us : message.codec_us) +=
        span.end_us - span.start_us;
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    for (const sync::Member& member : program.messages[i].members) {
      TensorTimes& tensor = tensors[member.tensor];
      tensor = {.ready_us = tensor.ready_us,
                .done_us = std::max(messages[i].done_us, tensor.ready_us),
                .codec_us = messages[i].codec_us,
                .comm_us = messages[i].comm_us};
    }
  }
  return tensors;
}

Json to_json(const TensorTimes& times) {
  return {{"ready_us", times.ready_us},
          {"done_us", times.done_us},
          {"codec_us", times.codec_us},
          {"comm_us", times.comm_us}};
}

/// By number, because spans name tensors so; rank 0's step stands for all.
Json tensors_json(const Piece& piece, const Replay& replay) {
  std::vector<Json> rows(piece.trace.tensors.size());
  const engine::Program& program = piece.program(replay.shown);
  const auto& messages = program.messages;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    for (const sync::Member& member : messages[i].members) {
      rows[member.tensor] = {{"name", member.name},
                             {"elements", member.shape.elements()},
                             {"codec", member.codec},
                             {"option", plan::to_text(messages[i].option)},
                             {"bucket", i}};
    }
  }
  const auto measured = tensor_times(piece, program, replay.ranks.front().spans, 0.0);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i]["measured"] = to_json(measured[i]);
  if (const plan::Timeline* timeline = piece.timeline(replay.shown)) {
    // The timeline begins with backward, the measured step with forward.
    const auto predicted = tensor_times(piece, program, timeline->spans, piece.trace.forward_us);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i]["predicted"] = to_json(predicted[i]);
  }
  return rows;
}

std::string action_text(const engine::Program& program, const plan::Span& span) {
  if (span.kind == plan::SpanKind::kBackward) return "backward";
  return plan::to_text(program.messages[span.message].option.actions()[span.action]);
}

/// Lanes in pairs: predicted above measured.
std::string page(const Piece& piece, const Replay& replay, const Json& tensors,
                 const std::string& verdict) {
  Json data = {{"title", piece.trace.model + ": predicted above measured"},
               {"verdict", verdict},
               {"tensors", tensors}};
  for (const plan::Lane lane : plan::kAllLanes) {
    data["lanes"].push_back(std::string(plan::to_text(lane)) + ", predicted");
    data["lanes"].push_back(std::string(plan::to_text(lane)) + ", measured");
  }
  data["spans"] = Json::array();
  const engine::Program& program = piece.program(replay.shown);
  const auto add = [&](std::span<const plan::Span> spans, int row, double shift_us) {
    for (const plan::Span& span : spans) {
      data["spans"].push_back({2 * static_cast<int>(span.lane) + row, span_kind(span.kind),
                               span.start_us + shift_us, span.end_us + shift_us, span.tensor,
                               action_text(program, span)});
    }
  };
  if (const plan::Timeline* timeline = piece.timeline(replay.shown)) {
    add(timeline->spans, 0, piece.trace.forward_us);
  }
  add(replay.ranks.front().spans, 1, 0.0);
  data["compare"] = Json::array();
  if (!piece.predicted.empty()) {
    data["compare"].push_back({{"name", "predicted"}, {"iteration_us", piece.predicted_us}});
  }
  const std::vector<double> times = sorted_times(replay, piece.alternates);
  data["compare"].push_back({{"name", "measured"}, {"iteration_us", times[times.size() / 2]}});
  return plan_page(data);
}

/// The prediction first, then every rank, on rank 0's clock.
Json trace_json(const Piece& piece, const Replay& replay) {
  std::vector<TraceProcess> processes;
  const engine::Program& program = piece.program(replay.shown);
  if (const plan::Timeline* timeline = piece.timeline(replay.shown)) {
    processes.push_back({.name = "predicted (all workers alike)",
                         .forward_us = piece.trace.forward_us,
                         .spans_from_us = piece.trace.forward_us,
                         .spans = timeline->spans});
  }
  for (std::size_t rank = 0; rank < replay.ranks.size(); ++rank) {
    const RankStep& step = replay.ranks[rank];
    processes.push_back({.pid = static_cast<int>(rank) + 1,
                         .name = "rank " + std::to_string(rank) + ", measured",
                         .begin_us = step.began_us,
                         .forward_us = piece.trace.forward_us,
                         .spans_from_us = step.began_us,
                         .spans = step.spans});
  }
  return perfetto_json(processes, [&](const plan::Span& span) {
    const plan::Tensor& tensor = piece.trace.tensors[span.tensor];
    return SpanLabel{
        .tensor = tensor.name, .action = action_text(program, span), .elements = tensor.elements};
  });
}

Json ranks_json(const Replay& replay) {
  Json rows = Json::array();
  for (std::size_t rank = 0; rank < replay.ranks.size(); ++rank) {
    const RankStep& step = replay.ranks[rank];
    rows.push_back({{"rank", rank},
                    {"began_us", step.began_us},
                    {"clock_offset_us", step.clock.us},
                    {"clock_error_us", step.clock.error_us}});
  }
  return rows;
}

/// Each of ACP-SGD's two kinds of steps by itself; those below are of the one that is shown.
Json print_kinds(const Piece& piece, const Replay& replay) {
  Json rows = Json::array();
  for (unsigned kind = 0; piece.alternates && kind < 2; ++kind) {
    std::vector<double> times;
    for (std::size_t i = 0; i < replay.kinds.size(); ++i) {
      if (replay.kinds[i] == kind) times.push_back(replay.step_us[i]);
    }
    std::ranges::sort(times);
    const char* name = kind == 0 ? "P" : "Q";
    Json row = {{"kind", name},
                {"messages", piece.program(kind).messages.size()},
                {"predicted_us", nullptr},
                {"measured_us", nullptr},
                {"shown", kind == replay.shown}};
    std::printf("  steps of %s: %zu messages", name, piece.program(kind).messages.size());
    if (const plan::Timeline* timeline = piece.timeline(kind)) {
      row["predicted_us"] = timeline->iteration_us;
      std::printf(", predicted %.3f ms", timeline->iteration_us / 1e3);
    }
    if (!times.empty()) {
      row["measured_us"] = times[times.size() / 2];
      std::printf(", measured %.3f ms", times[times.size() / 2] / 1e3);
    }
    std::printf("%s\n", kind == replay.shown ? "; shown below" : "");
    rows.push_back(std::move(row));
  }
  return rows;
}

Json print_lanes(const Piece& piece, const Replay& replay) {
  const LaneTimes measured = busy_us(replay.ranks.front().spans);
  const plan::Timeline* timeline = piece.timeline(replay.shown);
  const LaneTimes predicted = timeline != nullptr ? busy_us(timeline->spans) : LaneTimes{};
  Json lanes = Json::array();
  std::printf("  %-8s %16s %16s\n", "lane", "predicted ms", "measured ms");
  for (const plan::Lane lane : plan::kAllLanes) {
    const auto i = static_cast<std::size_t>(lane);
    std::printf("  %-8s %16.3f %16.3f\n", std::string(plan::to_text(lane)).c_str(),
                predicted[i] / 1e3, measured[i] / 1e3);
    lanes.push_back({{"lane", plan::to_text(lane)},
                     {"predicted_busy_us", predicted[i]},
                     {"measured_busy_us", measured[i]}});
  }
  return lanes;
}

/// The tensors whose predicted end is furthest from the measured one; --json has all.
void print_tensors(const Json& tensors) {
  constexpr std::size_t kShown = 5;
  const auto late_us = [](const Json& row) {
    return row["measured"]["done_us"].get<double>() - row["predicted"]["done_us"].get<double>();
  };
  std::vector<const Json*> order;
  for (const Json& row : tensors) order.push_back(&row);
  std::ranges::stable_sort(order, [&](const Json* a, const Json* b) {
    return std::abs(late_us(*a)) > std::abs(late_us(*b));
  });
  order.resize(std::min(kShown, order.size()));
  std::printf("  %-40s %11s %13s %13s %9s\n", "furthest from the prediction", "elements",
              "predicted end", "measured end", "off");
  for (const Json* row : order) {
    const std::string name = (*row)["name"].get<std::string>().substr(0, 40);
    const double predicted_us = (*row)["predicted"]["done_us"].get<double>();
    std::printf("  %-40s %11llu %10.3f ms %10.3f ms %+7.1f %%\n", name.c_str(),
                static_cast<unsigned long long>((*row)["elements"].get<std::uint64_t>()),
                predicted_us / 1e3, (predicted_us + late_us(*row)) / 1e3,
                predicted_us > 0.0 ? 100.0 * late_us(*row) / predicted_us : 0.0);
  }
}

std::string verdict_of(const Piece& piece, std::span<const double> times) {
  const double median = times[times.size() / 2];
  char text[160];
  if (!piece.predicted.empty()) {
    std::snprintf(text, sizeof text,
                  "predicted %.3f ms, measured %.3f ms (%.3f to %.3f): the prediction is %+.1f %%",
                  piece.predicted_us / 1e3, median / 1e3, times.front() / 1e3, times.back() / 1e3,
                  100.0 * (piece.predicted_us / median - 1.0));
  } else {
    std::snprintf(text, sizeof text, "measured %.3f ms (%.3f to %.3f) over %zu %s", median / 1e3,
                  times.front() / 1e3, times.back() / 1e3, times.size(),
                  piece.alternates ? "pairs of steps" : "steps");
  }
  return text;
}

}  // namespace

std::vector<double> sorted_times(const Replay& replay, bool alternates) {
  std::vector<double> times = replay.step_us;
  if (alternates && times.size() > 1) {
    for (std::size_t i = 0; i + 1 < times.size(); ++i) times[i] = 0.5 * (times[i] + times[i + 1]);
    times.pop_back();
  }
  std::ranges::sort(times);
  return times;
}

Status report_replay(const ReplayFiles& files, const BackendWorld& world, const Piece& piece,
                     const Replay& replay) {
  const std::vector<double> times = sorted_times(replay, piece.alternates);
  const std::uint64_t sent = replay.sent.intra + replay.sent.inter;
  const std::uint64_t promised = replay.promised.intra + replay.promised.inter;
  std::printf("%s, %zu tensors in %zu messages, %s, %u machines x %u, link %s, strategy %s\n",
              piece.trace.model.c_str(), piece.trace.tensors.size(),
              piece.programs.first.messages.size(), world.backend.c_str(), world.topology.machines,
              world.topology.workers_per_machine, comm::to_text(world.link).c_str(),
              piece.strategy.c_str());
  const std::string verdict = verdict_of(piece, times);
  std::printf("  %s\n  exposed %.3f ms; sent %llu bytes a step, promised %llu\n", verdict.c_str(),
              replay.exposed_us / 1e3, static_cast<unsigned long long>(sent),
              static_cast<unsigned long long>(promised));
  const Json kinds = print_kinds(piece, replay);
  const Json lanes = print_lanes(piece, replay);
  const Json tensors = tensors_json(piece, replay);
  if (!piece.predicted.empty()) print_tensors(tensors);
  Status status;
  if (!files.html.empty()) {
    status = write_text(files.html, page(piece, replay, tensors, verdict));
  }
  if (status && !files.perfetto.empty()) {
    status = write_json(files.perfetto, trace_json(piece, replay));
  }
  if (!status || files.json.empty()) return status;
  Json json = {{"format", "gradpress-replay-1"},
               {"date", date_text()},
               {"machine", machine_text()},
               {"model", piece.trace.model},
               {"backend", world.backend},
               {"workers", world.topology.workers()},
               {"link", comm::to_text(world.link)},
               {"strategy", piece.strategy},
               {"codec", piece.codec},
               {"predicted_us", nullptr},
               {"measured_us", times[times.size() / 2]},
               {"measured_min_us", times.front()},
               {"measured_max_us", times.back()},
               {"step_us", replay.step_us},
               {"messages", piece.programs.first.messages.size()},
               {"wire_bytes", sent},
               {"promised_bytes", promised},
               {"exposed_us", replay.exposed_us},
               {"lanes", lanes},
               {"ranks", ranks_json(replay)},
               {"tensors", tensors}};
  if (!piece.predicted.empty()) json["predicted_us"] = piece.predicted_us;
  if (piece.alternates) json["kinds"] = kinds;
  return write_json(files.json, json);
}

}  // namespace gradpress::cli
