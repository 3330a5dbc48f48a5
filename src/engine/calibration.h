// What the links and the codecs of a running world cost, measured and fitted to the cost model.
#pragma once

#include <gradpress/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "plan/cluster.h"
#include "plan/option.h"
#include "sync/fabric.h"

namespace gradpress::engine {

struct CalibrationOptions {
  std::vector<std::string> codecs = {};
  /// Bytes one worker holds, ascending: a collective's larger sizes are left out once a call took
  /// longer than `longest_call`.
  std::vector<std::size_t> bytes = {512, 4096, 16384, 65536, 262144, 1048576, 4194304};
  std::vector<std::size_t> elements = {64, 1024, 16384, 131072, 1048576, 4194304};
  unsigned turns = 7;  ///< per size, after one that does not count
  /// A turn has as many calls as take about so long, at least one.
  std::chrono::milliseconds turn{3};
  std::chrono::milliseconds longest_call{100};
  std::chrono::milliseconds longest_codec{60};
  /// About what all may take. Every collective and codec has an equal share; after the second size,
  /// one that would exceed the share is left out. 0: no limit.
  double limit_us = 0.0;
  /// Called on every rank with what is measured next: "allgather@inter", "topk:0.01".
  std::function<void(std::string_view)> progress = {};
};

/// The slowest rank's time of one call, over the turns.
struct Timing {
  double median_us = 0.0;
  double least_us = 0.0;
  double most_us = 0.0;
  double low_us = 0.0;   ///< a quarter of the turns took less
  double high_us = 0.0;  ///< a quarter of the turns took longer

  /// Between the quarters, as a share of the upper one: 0 to 1, and one turn that waited for
  /// something else does not show.
  double spread() const { return high_us > 0.0 ? (high_us - low_us) / high_us : 0.0; }
};
/// Requires: at least one time.
Timing timing_of(std::vector<double> times);

struct CollectivePoint {
  std::size_t bytes = 0;
  Timing time = {};
};

/// time ≈ A · latency + B · bytes · 8 / rate, A and B those of the cost model.
struct CollectiveFit {
  plan::Collective collective = plan::Collective::kAllReduce;
  plan::Phase phase = plan::Phase::kFlat;
  double latency_us = 0.0;
  double gbps = 0.0;
  bool rate_known = true;     ///< false: `gbps` is a lower bound
  bool latency_known = true;  ///< false: no latency above 0 explains the times
  double rate_error = 0.0;    ///< Line::rate_error
  /// Of the fitted against the measured time, as a share of the larger one: 0 to 1.
  double worst_error = 0.0;
  double median_error = 0.0;
  std::vector<CollectivePoint> points = {};
};

struct CodecPoint {
  std::size_t elements = 0;
  Timing encode = {};  ///< one round's
  Timing decode = {};  ///< of one payload, with its share of finish
};
struct CodecCosts {
  std::string codec = {};
  std::vector<CodecPoint> points = {};
};

/// The same on every rank.
struct Calibration {
  comm::Topology topology = {};
  std::array<std::vector<CollectiveFit>, 2> links =
      {};  ///< by sync::Link, a fit for each group of workers; empty where nothing moves
  std::vector<CodecCosts> codecs = {};
};

/// The same in parts, for whoever has other things to do between them. Every rank calls it alike.
class Calibrator {
 public:
  /// Requires: fabric and clock outlive it; options that calibrate() takes.
  Calibrator(sync::Fabric& fabric, CalibrationOptions options, Clock& clock);
  ~Calibrator();
  Calibrator(Calibrator&&) noexcept;

  /// Measures one size of one collective or codec. False: there was nothing left to measure.
  /// Errors: as calibrate().
  Result<bool> advance();
  /// What the slowest rank has spent so far, at least: the same on every rank.
  double spent_us() const;
  /// Requires: advance() returned false.
  const Calibration& result() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Measures; every rank calls it with the same options.
///
/// A turn is several calls in a row, as a step has them: collectives with the next one started
/// while the last one runs, codecs with whole encodes and decodes on all ranks at the same time. A
/// single call after a barrier would tell of the barrier's ends, of a shaper's full bucket and of
/// warm caches as much as of itself; and workers that share a machine share its cores and memory.
/// Cost:   seconds; a few times the largest size in memory.
/// Errors: kInvalidArgument on an unknown codec or no sizes; the groups'.
Result<Calibration> calibrate(sync::Fabric& fabric, const CalibrationOptions& options,
                              Clock& clock);

struct FitPoint {
  double alphas = 0.0;       ///< the cost model's factor of the latency
  double betas_bytes = 0.0;  ///< its factor of the time per byte × bytes
  double us = 0.0;
};
struct Line {
  double alpha_us = 0.0;
  double beta_us = 0.0;  ///< per byte
  /// False: the times do not grow with size by more than they scatter. `beta_us` is then the most
  /// that their scatter allows.
  bool rate_known = true;
  /// False: the line went below nothing at no bytes, and alpha_us is 0 for want of a better figure.
  bool latency_known = true;
  /// Half the distance between the quarters of the slopes of all pairs, as a share of their median:
  /// 0 where all agree, 1 and more where the rate is a guess.
  double rate_error = 0.0;

  double gbps() const { return 8.0 / (beta_us * 1000.0); }
};
/// No link is faster, in Gb/s: a figure above is an error of measurement.
inline constexpr double kMostGbps = 10'000.0;

/// A line through the points by Theil and Sen: the median slope of all pairs, then the median
/// latency. Up to a quarter of the points may lie anywhere. Points whose time is not a positive
/// number (a coarse clock) are left out. alpha_us is finite and at least 0; gbps() is finite, above
/// 0 and at most kMostGbps, whatever the points are.
Line fit_line(std::span<const FitPoint> points);
/// How far a line is from each point that has a time, as a share of the larger of both: 0 to 1.
std::vector<double> errors_of(const Line& line, std::span<const FitPoint> points);

/// The format gradpress-cluster-1, with the fits' errors and spreads beside the numbers.
/// Both places get the same codec costs: where there is no accelerator both are CPU cores.
Json to_cluster_json(const Calibration& calibration, std::string_view name, std::string_view about);

}  // namespace gradpress::engine
