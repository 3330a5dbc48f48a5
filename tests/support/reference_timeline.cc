#include "support/reference_timeline.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

namespace gradpress::test {

namespace {

struct Job {
  std::string lane;
  std::string what;
  double us = 0.0;
};

struct Word {
  std::string what, where;
};

std::vector<Word> words_of(const std::string& option) {
  std::istringstream in(option);
  std::vector<Word> words;
  for (std::string token; in >> token;) {
    if (token == ">") continue;
    const auto at = token.find('@');
    words.push_back({token.substr(0, at), token.substr(at + 1)});
  }
  return words;
}

double curve(const std::vector<plan::CostPoint>& points, double e, bool encode) {
  const auto y = [&](std::size_t i) { return encode ? points[i].encode_us : points[i].decode_us; };
  const auto x = [&](std::size_t i) { return static_cast<double>(points[i].elements); };
  if (points.size() == 1 || e <= x(0)) return y(0);
  std::size_t i = 1;
  while (i + 1 < points.size() && e > x(i)) ++i;
  const double slope = (y(i) - y(i - 1)) / (x(i) - x(i - 1));
  return std::max(0.0, y(i) + slope * (e - x(i)));
}

double log2_up(double x) {
  double power = 0.0;
  for (double reach = 1.0; reach < x; reach *= 2.0) power += 1.0;
  return power;
}

/// α and b·β parts of a collective's time, apart, so that a bucket can add up bytes.
struct CommTime {
  double latency_us, bytes_us;
};

CommTime comm_time(const plan::Cluster& cluster, const Word& word, bool root_only, double b) {
  const double n = cluster.topology.machines;
  const double k = cluster.topology.workers;
  const double w = n * k;
  const bool crosses = word.where == "inter" || (word.where == "flat" && n > 1);
  const plan::LinkModel& link = crosses ? cluster.inter : cluster.intra;
  const auto collective = *plan::parse_collective(word.what);
  const auto rate = word.where == "flat" && n > 1 ? link.of_flat(collective) : link.of(collective);
  const double alpha = rate.latency_us;
  const double beta = 8.0 / (rate.gbps * 1000.0);
  const std::string& c = word.what;
  if (word.where == "flat" && n > 1) {
    if (c == "alltoall") return {(w - 1) * alpha, k * (w - k) / w * b * beta};
    if (c == "gather") return {(w - 1) * alpha, (w - k) * b * beta};
    if (c == "reduce" || c == "broadcast") return {log2_up(w) * alpha, log2_up(n) * b * beta};
  }
  const double p = word.where == "inter" ? n : (word.where == "flat" && n > 1 ? w : k);
  const double m = word.where == "inter" && !root_only ? k : 1.0;
  if (c == "allreduce") return {2 * (p - 1) * alpha, 2 * (p - 1) / p * m * b * beta};
  if (c == "reduce-scatter" || c == "alltoall")
    return {(p - 1) * alpha, (p - 1) / p * m * b * beta};
  if (c == "allgather" || c == "gather") return {(p - 1) * alpha, (p - 1) * m * b * beta};
  return {log2_up(p) * alpha, log2_up(p) * m * b * beta};
}

struct Priced {
  std::string lane, what;
  bool is_codec = false;
  double latency_us = 0.0;  ///< counted once per bucket
  double us = 0.0;          ///< added up over members
};

std::vector<Priced> price(const plan::Trace& trace, const plan::Cluster& cluster,
                          const codec::Spec& spec, const std::string& option, std::size_t tensor) {
  const double n = cluster.topology.machines;
  const double k = cluster.topology.workers;
  double e = static_cast<double>(trace.tensors[tensor].elements);
  double c = 0.0;  // payloads; 0 is raw
  bool root_only = false;
  std::map<std::string, bool> open;  // phases whose first step has been done
  std::vector<Priced> tasks;
  for (const Word& word : words_of(option)) {
    Priced task{.lane = word.where, .what = word.what + "@" + word.where};
    if (word.what == "Comp" || word.what == "Decomp") {
      const auto* costs = cluster.costs(spec, *plan::parse_place(word.where));
      task.is_codec = true;
      const bool encode = word.what == "Comp";
      const bool each = !encode && cluster.decode_costs == plan::DecodeCosts::kPerPayload;
      task.us = (each ? c : 1.0) * curve(costs->points(), e, encode);
      c = encode ? 1.0 : 0.0;
      tasks.push_back(task);
      continue;
    }
    const double each =
        static_cast<double>(codec::payload_bytes(spec, Shape::flat(static_cast<std::uint64_t>(e))));
    const double b = c > 0.0 ? c * each : 4.0 * e;
    const CommTime time = comm_time(cluster, word, root_only, b);
    task.latency_us = time.latency_us;
    task.us = time.bytes_us;
    const bool flat = word.where == "flat";
    task.lane = word.where == "inter" || (flat && n > 1) ? "inter" : "intra";
    const double p = word.where == "inter" ? n : flat ? n * k : k;
    const std::string pair = word.where.substr(0, 5);  // intra1 and intra2 are one pair
    if (word.what == "reduce-scatter" || word.what == "alltoall") e = std::ceil(e / p);
    if (word.what == "alltoall" || word.what == "gather") c *= p;
    if (word.what == "allgather") (open[pair] ? e : c) *= p;
    if (word.what != "allgather" && word.what != "allreduce" && word.what != "broadcast") {
      open[pair] = true;
      if (word.where == "intra1") root_only = word.what == "reduce" || word.what == "gather";
    }
    tasks.push_back(task);
  }
  return tasks;
}

struct Runnable {
  double since;
  std::size_t index;
  std::size_t message;
  std::size_t member;  ///< for a member's own Comp; otherwise npos
  std::size_t position;
};
constexpr std::size_t kNone = static_cast<std::size_t>(-1);

}  // namespace

ReferenceTimeline reference_timeline(const plan::Trace& trace, const plan::Cluster& cluster,
                                     const codec::Spec& codec,
                                     const std::vector<std::string>& options,
                                     const std::vector<std::uint32_t>& bucket_of_tensor) {
  const std::size_t n = trace.tensors.size();
  std::map<std::size_t, std::vector<std::size_t>> members;
  for (std::size_t i = 0; i < n; ++i) members[bucket_of_tensor[i]].push_back(i);

  std::vector<std::vector<Job>> chains(members.size());
  std::vector<Job> leads(n);
  for (const auto& [bucket, inside] : members) {
    std::vector<Job>& chain = chains[bucket];
    for (const std::size_t tensor : inside) {
      const auto tasks = price(trace, cluster, codec, options[tensor], tensor);
      const bool first = tensor == inside.front();
      for (std::size_t i = 0; i < tasks.size(); ++i) {
        if (first) chain.push_back({tasks[i].lane, tasks[i].what, tasks[i].latency_us});
        if (inside.size() > 1 && i == 0 && tasks[i].is_codec) {
          leads[tensor] = {tasks[i].lane, tasks[i].what, tasks[i].us};
        } else {
          chain[i].us += tasks[i].us;
        }
      }
    }
    std::erase_if(chain, [](const Job& job) { return job.us == 0.0; });
  }

  ReferenceTimeline result;
  std::vector<Runnable> waiting;
  std::map<std::size_t, std::size_t> missing;
  for (const auto& [bucket, inside] : members) missing[bucket] = inside.size();
  struct Busy {
    bool active = false;
    bool backward = false;
    Runnable task{};
    std::string what;
    double start = 0.0, end = 0.0;
  };
  std::map<std::string, Busy> lanes = {{"device", {}}, {"host", {}}, {"intra", {}}, {"inter", {}}};
  std::size_t next = 0;  // the tensor whose backward comes next
  double now = 0.0;
  const auto job_of = [&](const Runnable& r) -> const Job& {
    return r.member != kNone ? leads[r.member] : chains[r.message][r.position];
  };
  const auto arrive = [&](std::size_t bucket) {
    if (--missing[bucket] == 0 && !chains[bucket].empty()) {
      waiting.push_back({now, members[bucket].back(), bucket, kNone, 0});
    }
  };
  const auto ready = [&](std::size_t tensor) {
    if (leads[tensor].us > 0.0) {
      waiting.push_back({now, tensor, bucket_of_tensor[tensor], tensor, 0});
    } else {
      arrive(bucket_of_tensor[tensor]);
    }
  };
  while (next < n && trace.tensors[next].ready_gap_us == 0.0) ready(next++);
  for (;;) {
    for (auto& [name, lane] : lanes) {
      if (lane.active) continue;
      std::size_t best = kNone;
      for (std::size_t i = 0; i < waiting.size(); ++i) {
        if (job_of(waiting[i]).lane != name) continue;
        if (best == kNone || std::pair(waiting[i].since, waiting[i].index) <
                                 std::pair(waiting[best].since, waiting[best].index)) {
          best = i;
        }
      }
      if (best != kNone) {
        const Runnable task = waiting[best];
        waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(best));
        const Job& job = job_of(task);
        lane = {true, false, task, job.what, now, now + job.us};
      } else if (name == "device" && next < n) {
        lane = {true,       true, {now, next, 0, kNone, 0},
                "backward", now,  now + trace.tensors[next].ready_gap_us};
      }
    }
    double end = -1.0;
    for (const auto& [name, lane] : lanes) {
      if (lane.active && (end < 0.0 || lane.end < end)) end = lane.end;
    }
    if (end < 0.0) break;
    now = end;
    for (auto& [name, lane] : lanes) {
      if (!lane.active || lane.end != now) continue;
      lane.active = false;
      result.spans.push_back({name, lane.what, lane.task.index, lane.start, lane.end});
      if (lane.backward) {
        ready(next++);
        while (next < n && trace.tensors[next].ready_gap_us == 0.0) ready(next++);
      } else if (lane.task.member != kNone) {
        arrive(lane.task.message);
      } else if (lane.task.position + 1 < chains[lane.task.message].size()) {
        waiting.push_back({now, lane.task.index, lane.task.message, kNone, lane.task.position + 1});
      }
    }
  }
  result.iteration_us = trace.forward_us + now;
  return result;
}

}  // namespace gradpress::test
