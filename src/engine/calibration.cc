#include "engine/calibration.h"

#include <gradpress/codec.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "plan/cost.h"

namespace gradpress::engine {

namespace {

double us(Time time) { return std::chrono::duration<double, std::micro>(time).count(); }

/// A rate is known if the times of the largest and the smallest size differ by so many scatters.
constexpr double kSureOfRate = 2.0;
/// Times may differ by this share without anybody seeing it.
constexpr double kLeastScatter = 0.05;
/// How much longer the next size may take: of a collective, of a codec.
constexpr double kNextSize = 4.0;
constexpr double kNextElements = 8.0;

/// Factors, bytes and times: above 0, and below what a computer can hold or a user waits for.
bool is_possible(double value) { return value > 1e-9 && value < 1e15; }

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

/// Calls that a turn has at most.
constexpr double kMostInARow = 24.0;
/// A call that takes longer than this has so few turns.
constexpr std::chrono::milliseconds kLongCall{20};
constexpr unsigned kFewTurns = 3;
/// Codecs go from tensor to tensor until they have touched so much, because a step's gradients do
/// not lie in caches either.
constexpr std::size_t kColdBytes = std::size_t{32} << 20;
constexpr std::size_t kNumbers = 16381;  ///< random ones; prime, so that no shape meets itself
constexpr std::size_t kBytesAtSite = 3 * sizeof(float);  ///< gradient, residual and sum

CollectiveKind kind_of(plan::Collective collective) {
  switch (collective) {
    case plan::Collective::kAllReduce:
      return CollectiveKind::kAllReduce;
    case plan::Collective::kReduceScatter:
      return CollectiveKind::kReduceScatter;
    case plan::Collective::kReduce:
      return CollectiveKind::kReduce;
    case plan::Collective::kAllGather:
      return CollectiveKind::kAllGather;
    case plan::Collective::kBroadcast:
      return CollectiveKind::kBroadcast;
    case plan::Collective::kAllToAll:
      return CollectiveKind::kAllToAll;
    case plan::Collective::kGather:
      return CollectiveKind::kGather;
  }
  return CollectiveKind::kBarrier;
}

/// A and B of the cost model: the line of a cluster whose links have latency 1 µs and take 1 µs a
/// byte.
plan::CommCosts unit_costs(const comm::Topology& topology) {
  constexpr double kOneByteEachUs = 8.0 / 1000.0;
  plan::Cluster cluster;
  cluster.topology = {.machines = topology.machines, .workers = topology.workers_per_machine};
  cluster.intra.link = {.latency_us = 1.0, .gbps = kOneByteEachUs};
  cluster.inter.link = {.latency_us = 1.0, .gbps = kOneByteEachUs};
  return plan::CommCosts(cluster);
}

/// One worker's part of a collective in which every worker holds `bytes` going in.
struct Buffers {
  std::vector<float> in;
  std::vector<float> out;
  std::vector<float> own;  ///< times
  std::vector<float> all;

  Collective call(plan::Collective collective, std::size_t bytes, unsigned members) {
    const std::size_t floats = std::max<std::size_t>(1, bytes / sizeof(float) / members) * members;
    const bool collects =
        collective == plan::Collective::kAllGather || collective == plan::Collective::kGather;
    const std::size_t out_floats = collects ? floats * members
                                   : collective == plan::Collective::kReduceScatter
                                       ? floats / members
                                       : floats;
    in.resize(std::max(in.size(), floats));
    out.resize(std::max(out.size(), out_floats));
    return {.kind = kind_of(collective),
            .type = DataType::kFloat32,
            .in = std::as_bytes(std::span(in).first(floats)),
            .out = std::as_writable_bytes(std::span(out).first(out_floats)),
            .tensor = "calibration"};
  }
};

struct Payload {
  std::vector<std::byte> memory;
  std::size_t used = 0;
};
std::span<const std::byte> used_of(const Payload& payload) {
  return std::span(payload.memory).first(payload.used);
}

/// One tensor under a codec: what an encode site of a step has.
struct CodecSite {
  std::unique_ptr<State> state = {};
  std::vector<float> gradient = {};
  std::vector<float> sum = {};
  std::array<Payload, 2> payload = {};

  /// The gradient is `numbers` over and over: drawing them all would take longer than measuring.
  Status prepare(const Codec& codec, const Shape& shape, std::span<const float> numbers) {
    auto made = codec.make_state({.shape = shape, .seed = 1});
    if (!made) return made.error();
    state = std::move(*made);
    gradient.resize(shape.elements());
    for (std::size_t i = 0; i < gradient.size(); i += numbers.size()) {
      const std::size_t count = std::min(numbers.size(), gradient.size() - i);
      std::ranges::copy(numbers.first(count), gradient.begin() + static_cast<std::ptrdiff_t>(i));
    }
    sum.resize(gradient.size());
    for (unsigned round = 0; round < codec.traits().rounds; ++round) {
      payload[round].memory.resize(codec.encode_bound(shape, 1, round));
    }
    return {};
  }

  Status encode(const Codec& codec, std::uint64_t step) {
    for (unsigned round = 0; round < codec.traits().rounds; ++round) {
      const auto used = codec.encode(
          *state,
          {.grad = gradient,
           .step = step,
           .round = round,
           .reduced = round == 0 ? std::span<const std::byte>() : used_of(payload[round - 1])},
          payload[round].memory);
      if (!used) return used.error();
      payload[round].used = *used;
    }
    return {};
  }

  Status decode(const Codec& codec, std::uint64_t step) {
    const Status status = codec.decode(
        *state, {.payload = used_of(payload[codec.traits().rounds - 1]), .step = step}, sum);
    return status ? codec.finish(*state, 1, sum) : status;
  }
};

}  // namespace

class Calibrator::Impl {
 public:
  Impl(sync::Fabric& fabric, CalibrationOptions options, Clock& clock)
      : fabric_(fabric),
        world_(fabric.group(plan::Phase::kFlat)),
        options_(std::move(options)),
        clock_(clock),
        result_{.topology = fabric.topology()} {
    for (const sync::Link link : {sync::Link::kIntra, sync::Link::kInter}) {
      const std::vector<plan::Phase> phases = phases_of(link);
      for (std::size_t i = 0; i < plan::kCollectives; ++i) {
        for (const plan::Phase phase : phases) {
          collectives_.push_back(
              {.link = link,
               .fit = {.collective = static_cast<plan::Collective>(i), .phase = phase}});
        }
      }
    }
  }

  Result<bool> advance() {
    if (collective_ < collectives_.size()) {
      Status status = advance_collective(collectives_[collective_]);
      if (!status) return tl::unexpected(status);
      return true;
    }
    if (result_.codecs.size() == options_.codecs.size() && size_ == 0) return false;
    Status status = advance_codec();
    if (!status) return tl::unexpected(status);
    return true;
  }
  double spent_us() const { return spent_us_; }
  const Calibration& result() const { return result_; }

 private:
  struct Measured {
    sync::Link link = sync::Link::kInter;
    CollectiveFit fit = {};
  };

  Status advance_collective(Measured& measured) {
    if (size_ == 0) {
      say(std::string(plan::to_text(measured.fit.collective)) + "@" +
          std::string(plan::to_text(measured.fit.phase)));
    }
    const double before_us = spent_us_;
    const auto taken = measure_collective(options_.bytes[size_], measured.fit);
    if (!taken) return taken.error();
    ++size_;
    // A line needs two sizes.
    const bool enough = size_ >= 2 && (*taken > us(options_.longest_call) ||
                                       is_share_spent(spent_us_ - before_us, kNextSize));
    if (size_ < options_.bytes.size() && !enough) return {};
    size_ = 0;
    unit_us_ = 0.0;
    ++collective_;
    fit_collective(measured);
    return {};
  }

  Status advance_codec() {
    if (size_ == 0) {
      const std::string& text = options_.codecs[result_.codecs.size()];
      auto made = make_codec(text);
      if (!made) return made.error();
      codec_ = std::move(*made);
      say(codec_->name());
      result_.codecs.push_back({.codec = codec_->name()});
    }
    const double before_us = spent_us_;
    const auto point = measure_codec_at(*codec_, options_.elements[size_]);
    if (!point) return point.error();
    result_.codecs.back().points.push_back(*point);
    const double longest = std::max(point->encode.median_us, point->decode.median_us);
    ++size_;
    const bool spent = is_share_spent(spent_us_ - before_us, kNextElements) && size_ >= 2;
    if (size_ < options_.elements.size() && longest <= us(options_.longest_codec) && !spent) {
      return {};
    }
    size_ = 0;
    unit_us_ = 0.0;
    return {};
  }

  /// Whether the next size would take more than is left of this collective's or codec's share.
  /// `last_us`: what the last size took; the same on every rank.
  bool is_share_spent(double last_us, double growth) {
    unit_us_ += last_us;
    if (options_.limit_us <= 0.0) return false;
    const auto units = static_cast<double>(collectives_.size() + options_.codecs.size());
    return unit_us_ + growth * last_us > options_.limit_us / units;
  }

  void say(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }

  /// The slowest rank's times, sorted out; the same on every rank.
  /// `calls`: how many of what was timed each time stands for.
  Result<Timing> agreed(std::span<const double> mine, std::size_t calls) {
    std::vector<float>& all = buffers_.all;
    std::vector<float>& own = buffers_.own;
    all.resize(mine.size() * world_.size());
    own.assign(mine.begin(), mine.end());
    const Status status = world_.run({.kind = CollectiveKind::kAllGather,
                                      .type = DataType::kFloat32,
                                      .in = std::as_bytes(std::span(own)),
                                      .out = std::as_writable_bytes(std::span(all)),
                                      .tensor = "calibration"});
    if (!status) return tl::unexpected(status);
    std::vector<double> slowest(mine.size(), 0.0);
    for (std::size_t i = 0; i < all.size(); ++i) {
      double& most = slowest[i % mine.size()];
      most = std::max(most, static_cast<double>(all[i]));
    }
    spent_us_ += static_cast<double>(calls) * std::accumulate(slowest.begin(), slowest.end(), 0.0);
    return timing_of(std::move(slowest));
  }

  Status barrier() { return world_.run({.kind = CollectiveKind::kBarrier}); }

  /// How many calls make a turn, the same on every rank, when one of them takes about so long.
  Result<unsigned> calls_in_a_row(double mine_us) {
    const auto time = agreed(std::span(&mine_us, 1), 1);
    if (!time) return tl::unexpected(time.error());
    const double wanted = us(options_.turn) / std::max(time->median_us, 1.0);
    return static_cast<unsigned>(std::clamp(wanted, 1.0, kMostInARow));
  }

  /// One call alone, after a barrier.
  Result<double> single_us(Group& group, const Collective& call) {
    if (Status status = barrier(); !status) return tl::unexpected(status);
    const Time start = clock_.now();
    if (Status status = group.run(call); !status) return tl::unexpected(status);
    return us(clock_.now() - start);
  }

  /// What each of `calls` in a row takes, all ranks at once. One more goes before them: it finds
  /// links rested, with room for some packets that cost nothing, and ranks that left the barrier
  /// one after the other.
  Result<double> turn_us(Group& group, const Collective& call, unsigned calls) {
    if (Status status = barrier(); !status) return tl::unexpected(status);
    auto before = group.start(call);
    if (!before) return tl::unexpected(before.error());
    Time start{0};
    for (unsigned i = 0; i <= calls; ++i) {
      Ticket next = 0;
      if (i < calls) {
        const auto ticket = group.start(call);
        if (!ticket) return tl::unexpected(ticket.error());
        next = *ticket;
      }
      if (Status status = group.wait(*before); !status) return tl::unexpected(status);
      if (i == 0) start = clock_.now();
      before = next;
    }
    return us(clock_.now() - start) / calls;
  }

  void fit_collective(Measured& measured) {
    const plan::CommCosts unit = unit_costs(fabric_.topology());
    CollectiveFit& fit = measured.fit;
    const auto unit_line = unit.line(fit.phase, fit.collective, false);
    std::vector<FitPoint> points;
    for (const CollectivePoint& point : fit.points) {
      points.push_back({.alphas = unit_line.fixed_us,
                        .betas_bytes = unit_line.us_per_byte * static_cast<double>(point.bytes),
                        .us = point.time.median_us});
    }
    const Line line = fit_line(points);
    fit.latency_us = line.alpha_us;
    fit.gbps = line.gbps();
    fit.rate_known = line.rate_known;
    fit.latency_known = line.latency_known;
    fit.rate_error = line.rate_error;
    if (const auto errors = errors_of(line, points); !errors.empty()) {
      fit.worst_error = std::ranges::max(errors);
      fit.median_error = median_of(errors);
    }
    result_.links[static_cast<std::size_t>(measured.link)].push_back(fit);
  }

  /// The phases whose group has several members, on that link; intra2's group is intra1's.
  std::vector<plan::Phase> phases_of(sync::Link link) const {
    std::vector<plan::Phase> phases;
    for (const plan::Phase phase :
         {plan::Phase::kFlat, plan::Phase::kIntra1, plan::Phase::kInter}) {
      if (fabric_.link(phase) != link || fabric_.group(phase).size() < 2) continue;
      // With one worker a machine, or one machine, two phases are the same group of workers.
      const bool again = std::ranges::any_of(phases, [&](plan::Phase other) {
        return fabric_.group(other).size() == fabric_.group(phase).size();
      });
      if (!again) phases.push_back(phase);
    }
    return phases;
  }

  /// Its median.
  Result<double> measure_collective(std::size_t bytes, CollectiveFit& fit) {
    Group& group = fabric_.group(fit.phase);
    const Collective call = buffers_.call(fit.collective, bytes, group.size());
    // The first call does not count: it says how many the others may be.
    const auto first = single_us(group, call);
    if (!first) return tl::unexpected(first.error());
    const auto calls = calls_in_a_row(*first);
    if (!calls) return tl::unexpected(calls.error());
    std::vector<double> times;
    while (times.size() < options_.turns) {
      const auto taken = turn_us(group, call, *calls);
      if (!taken) return tl::unexpected(taken.error());
      times.push_back(*taken);
      // Long calls hardly vary, and take long. All ranks know the slowest one's time.
      if (times.size() == kFewTurns && *calls == 1) {
        const auto so_far = agreed(times, 0);
        if (!so_far) return tl::unexpected(so_far.error());
        if (so_far->median_us > us(kLongCall)) break;
      }
    }
    const auto time = agreed(times, *calls + 1);
    if (!time) return tl::unexpected(time.error());
    fit.points.push_back({.bytes = call.in.size(), .time = *time});
    return time->median_us;
  }

  Result<CodecPoint> measure_codec_at(const Codec& codec, std::size_t elements) {
    // Near-square matrices: low-rank codecs have nothing to do on others.
    const auto rows = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(elements)));
    const Shape shape{rows, elements / rows};
    std::vector<float> numbers(kNumbers);
    std::mt19937 random(fabric_.rank());
    std::normal_distribution<float> normal;
    for (float& value : numbers) value = normal(random);
    std::vector<CodecSite> sites(1);
    if (Status status = sites[0].prepare(codec, shape, numbers); !status) {
      return tl::unexpected(status);
    }
    // The first turn does not count: it says how many calls the others may have. Two steps, always
    // an even number, because acpsgd's two cost differently.
    std::uint64_t step = 0;
    const auto first = steps_us(codec, sites, 2, step);
    if (!first) return tl::unexpected(first.error());
    const auto calls = calls_in_a_row(first->first + first->second);
    if (!calls) return tl::unexpected(calls.error());
    const std::size_t cold = kColdBytes / (kBytesAtSite * shape.elements());
    sites.resize(std::clamp<std::size_t>(cold, 1, *calls));
    for (std::size_t i = 1; i < sites.size(); ++i) {
      if (Status status = sites[i].prepare(codec, shape, numbers); !status) {
        return tl::unexpected(status);
      }
    }
    const auto steps = 2 * std::max<std::size_t>(1, *calls / (2 * sites.size()));
    std::vector<double> encodes;
    std::vector<double> decodes;
    for (unsigned turn = 0; turn < options_.turns; ++turn) {
      const auto taken = steps_us(codec, sites, steps, step);
      if (!taken) return tl::unexpected(taken.error());
      encodes.push_back(taken->first);
      decodes.push_back(taken->second);
    }
    const auto encode = agreed(encodes, steps * sites.size());
    if (!encode) return tl::unexpected(encode.error());
    const auto decode = agreed(decodes, steps * sites.size());
    if (!decode) return tl::unexpected(decode.error());
    return CodecPoint{.elements = shape.elements(), .encode = *encode, .decode = *decode};
  }

  /// One round's encode and one decode, in the mean over all sites and so many whole steps: some
  /// codecs take over what arrived.
  Result<std::pair<double, double>> steps_us(const Codec& codec, std::span<CodecSite> sites,
                                             std::size_t steps, std::uint64_t& step) {
    if (Status status = barrier(); !status) return tl::unexpected(status);
    Time encoding{0};
    Time decoding{0};
    for (std::size_t i = 0; i < steps; ++i, ++step) {
      for (CodecSite& site : sites) std::ranges::fill(site.sum, 0.0F);
      const Time start = clock_.now();
      for (CodecSite& site : sites) {
        if (Status status = site.encode(codec, step); !status) return tl::unexpected(status);
      }
      const Time encoded = clock_.now();
      for (CodecSite& site : sites) {
        if (Status status = site.decode(codec, step); !status) return tl::unexpected(status);
      }
      encoding += encoded - start;
      decoding += clock_.now() - encoded;
    }
    const auto calls = static_cast<double>(steps * sites.size());
    return std::pair(us(encoding) / calls / codec.traits().rounds, us(decoding) / calls);
  }

  sync::Fabric& fabric_;
  Group& world_;
  const CalibrationOptions options_;
  Clock& clock_;
  Buffers buffers_;
  Calibration result_;
  double spent_us_ = 0.0;
  double unit_us_ = 0.0;  ///< of it, what this collective or codec took

  // What is measured next.
  std::vector<Measured> collectives_;
  std::size_t collective_ = 0;
  std::size_t size_ = 0;
  std::unique_ptr<const Codec> codec_;
};

Calibrator::Calibrator(sync::Fabric& fabric, CalibrationOptions options, Clock& clock)
    : impl_(std::make_unique<Impl>(fabric, std::move(options), clock)) {}
Calibrator::~Calibrator() = default;
Calibrator::Calibrator(Calibrator&&) noexcept = default;
Result<bool> Calibrator::advance() { return impl_->advance(); }
double Calibrator::spent_us() const { return impl_->spent_us(); }
const Calibration& Calibrator::result() const { return impl_->result(); }

namespace {

Json to_json(const Timing& timing) {
  return {{"median_us", timing.median_us},
          {"least_us", timing.least_us},
          {"most_us", timing.most_us},
          {"low_us", timing.low_us},
          {"high_us", timing.high_us}};
}

Json fit_json(const CollectiveFit& fit) {
  Json points = Json::array();
  for (const CollectivePoint& point : fit.points) {
    Json row = {{"bytes", point.bytes}};
    row.update(to_json(point.time));
    points.push_back(std::move(row));
  }
  return {{"latency_us", fit.latency_us},       {"gbps", fit.gbps},
          {"latency_known", fit.latency_known}, {"rate_known", fit.rate_known},
          {"rate_error", fit.rate_error},       {"fit_median_error", fit.median_error},
          {"fit_worst_error", fit.worst_error}, {"measured", std::move(points)}};
}

Json link_json(std::span<const CollectiveFit> fits) {
  // The link's own numbers are its all-reduce's; every collective overrides them.
  Json collectives = Json::object();
  Json link = {{"gbps", 1000.0}, {"latency_us", 0.0}};
  for (const CollectiveFit& fit : fits) {
    Json& entry = collectives[std::string(plan::to_text(fit.collective))];
    // Between machines a link may have two groups, of all workers and of one per machine.
    const bool has_other = std::ranges::any_of(fits, [&](const CollectiveFit& other) {
      return other.collective == fit.collective && other.phase != fit.phase;
    });
    if (has_other && fit.phase == plan::Phase::kFlat) {
      entry["flat"] = fit_json(fit);
      continue;
    }
    entry.update(fit_json(fit));
    if (fit.collective == plan::Collective::kAllReduce) {
      link["gbps"] = fit.gbps;
      link["rate_known"] = fit.rate_known;
      link["latency_us"] = fit.latency_us;
    }
  }
  if (!collectives.empty()) link["collectives"] = std::move(collectives);
  return link;
}

}  // namespace

Timing timing_of(std::vector<double> times) {
  std::ranges::sort(times);
  const std::size_t count = times.size();
  return {.median_us = times[count / 2],
          .least_us = times.front(),
          .most_us = times.back(),
          .low_us = times[count / 4],
          .high_us = times[count - 1 - count / 4]};
}

std::vector<double> errors_of(const Line& line, std::span<const FitPoint> points) {
  std::vector<double> errors;
  for (const FitPoint& point : points) {
    if (!is_possible(point.us)) continue;
    const double fitted = point.alphas * line.alpha_us + point.betas_bytes * line.beta_us;
    errors.push_back(std::abs(fitted - point.us) / std::max(fitted, point.us));
  }
  return errors;
}

Line fit_line(std::span<const FitPoint> points) {
  struct Point {
    double x;  ///< bytes
    double y;  ///< µs, both for one latency
  };
  std::vector<Point> usable;
  for (const FitPoint& point : points) {
    const Point scaled{.x = point.betas_bytes / point.alphas, .y = point.us / point.alphas};
    const bool is_good =
        is_possible(point.alphas) && is_possible(point.betas_bytes) && is_possible(point.us);
    if (is_good) usable.push_back(scaled);
  }
  constexpr double kLeastBeta = 8.0 / (kMostGbps * 1000.0);
  if (usable.empty()) return {.alpha_us = 0.0, .beta_us = kLeastBeta, .rate_known = false};
  std::vector<double> slopes;
  for (std::size_t i = 0; i < usable.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (usable[i].x == usable[j].x) continue;
      slopes.push_back((usable[i].y - usable[j].y) / (usable[i].x - usable[j].x));
    }
  }
  const auto median_over = [&](const auto& of_point) {
    std::vector<double> values;
    values.reserve(usable.size());
    for (const Point& point : usable) values.push_back(of_point(point));
    return median_of(std::move(values));
  };
  Line line;
  line.beta_us = slopes.empty() ? 0.0 : median_of(slopes);
  if (line.beta_us > 0.0) {
    std::ranges::sort(slopes);
    const double quarters = slopes[3 * slopes.size() / 4] - slopes[slopes.size() / 4];
    line.rate_error = 0.5 * quarters / line.beta_us;
  }
  line.alpha_us = median_over([&](const Point& point) { return point.y - line.beta_us * point.x; });
  const double scatter = median_over([&](const Point& point) {
    return std::abs(point.y - line.alpha_us - line.beta_us * point.x);
  });
  const auto [least, most] = std::ranges::minmax(usable, {}, &Point::x);
  if (line.beta_us * (most.x - least.x) <= kSureOfRate * scatter || line.beta_us < kLeastBeta) {
    line.rate_known = false;
    line.alpha_us = median_over([](const Point& point) { return point.y; });
    line.beta_us = std::max(scatter, kLeastScatter * line.alpha_us) / most.x;
  }
  if (line.alpha_us < 0.0) {
    line.latency_known = false;
    line.alpha_us = 0.0;
    line.beta_us = median_over([](const Point& point) { return point.y / point.x; });
  }
  line.beta_us = std::max(line.beta_us, kLeastBeta);
  return line;
}

Result<Calibration> calibrate(sync::Fabric& fabric, const CalibrationOptions& options,
                              Clock& clock) {
  if (options.turns == 0 || options.bytes.size() < 2 || options.elements.empty()) {
    return fail(Code::kInvalidArgument, "calibration: wanted turns, two sizes of messages and one ",
                "of tensors at least, got ", options.turns, ", ", options.bytes.size(), " and ",
                options.elements.size());
  }
  Calibrator calibrator(fabric, options, clock);
  for (;;) {
    const auto more = calibrator.advance();
    if (!more) return tl::unexpected(more.error());
    if (!*more) return calibrator.result();
  }
}

Json to_cluster_json(const Calibration& calibration, std::string_view name,
                     std::string_view about) {
  Json json = {{"format", "gradpress-cluster-1"},
               {"name", name},
               {"about", about},
               {"machines", calibration.topology.machines},
               {"workers_per_machine", calibration.topology.workers_per_machine},
               {"intra", link_json(calibration.links[0])},
               {"inter", link_json(calibration.links[1])}};
  Json costs = Json::object();
  for (const CodecCosts& codec : calibration.codecs) {
    Json points = Json::array();
    for (const CodecPoint& point : codec.points) {
      points.push_back({{"elements", point.elements},
                        {"encode_us", point.encode.median_us},
                        {"decode_us", point.decode.median_us},
                        {"encode", to_json(point.encode)},
                        {"decode", to_json(point.decode)}});
    }
    costs[codec.codec] = {{"device", points}, {"host", points}};
  }
  json["decode_costs"] = plan::to_text(plan::DecodeCosts::kPerPayload);
  json["codec_costs"] = std::move(costs);
  return json;
}

}  // namespace gradpress::engine
