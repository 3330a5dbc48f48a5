#include "plan/cluster.h"

#include <algorithm>

#include "plan/field.h"
#include "spec/facts.h"

namespace gradpress::plan {

namespace {

constexpr std::string_view kFormat = "gradpress-cluster-1";
constexpr std::uint64_t kMaxMachines = 1'000'000;
constexpr std::uint64_t kMaxWorkers = 1024;
/// Below and above these a rate is an error of typing or of measurement: 1 kb/s and 1 Pb/s.
constexpr double kLeastGbps = 1e-6;
constexpr double kMostGbps = 1e6;

Status read_rate(const Field& parent, double& gbps) {
  const auto field = parent.at("gbps");
  if (!field) return field.error();
  const auto number = field->number(kLeastGbps);
  if (!number) return number.error();
  if (*number > kMostGbps) return field->wrong("at most 1000000 Gb/s").value();
  gbps = *number;
  return {};
}

Status read_number(const Field& parent, std::string_view key, double least, double& out) {
  const auto field = parent.at(key);
  if (!field) return field.error();
  const auto number = field->number(least);
  if (!number) return number.error();
  out = *number;
  return {};
}

/// Measured files say so where times did not show the rate.
Status read_known(const Field& given, bool& known) {
  if (!given.has("rate_known")) return {};
  const Json& value = given.at("rate_known")->json();
  if (!value.is_boolean()) return given.at("rate_known")->wrong("true or false").value();
  known = value.get<bool>();
  return {};
}

/// What is not given is as in `otherwise`.
Status read_override(const Field& given, const LinkModel::Rate& otherwise,
                     std::optional<LinkModel::Rate>& out) {
  if (!given.has("gbps") && !given.has("latency_us")) {
    return given.wrong("an object with gbps or latency_us").value();
  }
  LinkModel::Rate rate = otherwise;
  if (given.has("gbps")) {
    if (auto s = read_rate(given, rate.gbps); !s) return s;
    rate.known = true;
  }
  if (auto s = read_known(given, rate.known); !s) return s;
  if (given.has("latency_us")) {
    if (auto s = read_number(given, "latency_us", 0.0, rate.latency_us); !s) return s;
  }
  out = rate;
  return {};
}

Result<LinkModel> read_link(const Field& field) {
  LinkModel model;
  if (auto s = read_rate(field, model.link.gbps); !s) return tl::unexpected(s);
  if (auto s = read_number(field, "latency_us", 0.0, model.link.latency_us); !s) {
    return tl::unexpected(s);
  }
  if (auto s = read_known(field, model.link.known); !s) return tl::unexpected(s);
  if (!field.has("collectives")) return model;
  const Field collectives = *field.at("collectives");
  if (!collectives.json().is_object()) return collectives.wrong("an object");
  for (std::size_t i = 0; i < kCollectives; ++i) {
    const auto collective = static_cast<Collective>(i);
    const std::string_view name = to_text(collective);
    if (!collectives.has(name)) continue;
    const Field given = *collectives.at(name);
    if (auto s = read_override(given, model.link, model.overrides[i]); !s) return tl::unexpected(s);
    if (!given.has("flat")) continue;
    if (auto s = read_override(*given.at("flat"), model.of(collective), model.flat_overrides[i]);
        !s) {
      return tl::unexpected(s);
    }
  }
  return model;
}

Result<CostCurve> read_curve(const Field& field) {
  const auto length = field.length();
  if (!length) return tl::unexpected(length.error());
  if (*length == 0) return field.wrong("at least one point");
  std::vector<CostPoint> points;
  for (std::size_t i = 0; i < *length; ++i) {
    const Field given = field.at(i);
    CostPoint point;
    const auto elements_field = given.at("elements");
    if (!elements_field) return tl::unexpected(elements_field.error());
    const auto elements = elements_field->whole(0, kMaxElements);
    if (!elements) return tl::unexpected(elements.error());
    point.elements = *elements;
    if (!points.empty() && point.elements <= points.back().elements) {
      return elements_field->wrong("more than the point before");
    }
    if (auto s = read_number(given, "encode_us", 0.0, point.encode_us); !s)
      return tl::unexpected(s);
    if (auto s = read_number(given, "decode_us", 0.0, point.decode_us); !s)
      return tl::unexpected(s);
    points.push_back(point);
  }
  return CostCurve(std::move(points));
}

/// A name before the colon stands for every parameter of that codec: "dgc" for "dgc:0.01".
bool is_codec(std::string_view text) {
  return codec::find_facts(text) != nullptr || codec::parse_spec(text);
}

Status read_costs(const Field& field, Cluster& cluster) {
  if (!field.json().is_object()) return field.wrong("an object of codecs").value();
  for (const auto& [name, value] : field.json().items()) {
    const Field given = *field.at(name);
    if (!is_codec(name)) return given.wrong("a codec that gradpress knows").value();
    auto& curves = cluster.codec_costs[name];
    for (const Place place : {Place::kDevice, Place::kHost}) {
      if (!given.has(to_text(place))) continue;
      auto curve = read_curve(*given.at(to_text(place)));
      if (!curve) return curve.error();
      curves[static_cast<std::size_t>(place)] = std::move(*curve);
    }
    if (!curves[0] && !curves[1]) return given.wrong("costs for device or host").value();
  }
  return {};
}

Status read_decode_costs(const Field& root, DecodeCosts& costs) {
  if (!root.has("decode_costs")) return {};
  const Field field = *root.at("decode_costs");
  const auto text = field.text();
  if (!text) return text.error();
  for (const DecodeCosts known : {DecodeCosts::kPerPayload, DecodeCosts::kPerOperation}) {
    if (*text != to_text(known)) continue;
    costs = known;
    return {};
  }
  return field.wrong("\"per-payload\" or \"per-operation\"").value();
}

Result<std::uint32_t> read_count(const Field& root, std::string_view key, std::uint64_t most) {
  const auto field = root.at(key);
  if (!field) return tl::unexpected(field.error());
  const auto count = field->whole(1, most);
  if (!count) return tl::unexpected(count.error());
  return static_cast<std::uint32_t>(*count);
}

}  // namespace

std::string_view to_text(DecodeCosts costs) {
  return costs == DecodeCosts::kPerPayload ? "per-payload" : "per-operation";
}

double CostCurve::at(std::uint64_t elements, double CostPoint::*time) const {
  const auto above = std::ranges::upper_bound(points_, elements, {}, &CostPoint::elements);
  if (above == points_.begin() || points_.size() == 1) return points_.front().*time;
  const auto right = above == points_.end() ? above - 1 : above;
  const CostPoint& a = *(right - 1);
  const CostPoint& b = *right;
  const double x = static_cast<double>(elements) - static_cast<double>(a.elements);
  const double width = static_cast<double>(b.elements) - static_cast<double>(a.elements);
  return std::max(0.0, a.*time + (b.*time - a.*time) * (x / width));
}

CostCurve CostCurve::scaled(double factor) const {
  std::vector<CostPoint> points = points_;
  for (CostPoint& point : points) {
    point.encode_us *= factor;
    point.decode_us *= factor;
  }
  return CostCurve(std::move(points));
}

const CostCurve* Cluster::costs(const codec::Spec& spec, Place place) const {
  const std::string text = codec::to_text(spec);
  for (const std::string_view key :
       {std::string_view(text), std::string_view(text).substr(0, text.find(':'))}) {
    const auto found = codec_costs.find(key);
    if (found == codec_costs.end()) continue;
    const auto& curve = found->second[static_cast<std::size_t>(place)];
    if (curve) return &*curve;
  }
  if (!codec::facts_of(spec).is_low_rank()) return nullptr;
  const auto by_rank = costs_by_rank(spec.kind, place);
  return by_rank.empty() ? nullptr : by_rank.front().curve;
}

std::vector<RankedCurve> Cluster::costs_by_rank(codec::Kind kind, Place place) const {
  std::map<unsigned, const CostCurve*> found;
  for (const auto& [text, curves] : codec_costs) {
    const auto& curve = curves[static_cast<std::size_t>(place)];
    if (!curve) continue;
    const bool is_bare = text.find(':') == std::string::npos;
    const auto spec = codec::parse_spec(
        is_bare ? std::string(text).append(":").append(std::to_string(kRankOfBareName)) : text);
    if (!spec || spec->kind != kind) continue;
    // A bare name sorts before its texts with a rank, which say more.
    found[spec->rank] = &*curve;
  }
  std::vector<RankedCurve> by_rank;
  by_rank.reserve(found.size());
  for (const auto& [rank, curve] : found) by_rank.push_back({rank, curve});
  return by_rank;
}

Status Cluster::check_codec(const codec::Spec& spec) const {
  if (!codec::facts_of(spec).encodes() || costs(spec, Place::kDevice) != nullptr ||
      costs(spec, Place::kHost) != nullptr) {
    return {};
  }
  std::string known;
  for (const auto& [text, curves] : codec_costs)
    known.append(known.empty() ? "" : ", ").append(text);
  return Status::error(Code::kInvalidArgument, "cluster ", name, ": no costs for codec ",
                       codec::to_text(spec), " in codec_costs; it has ",
                       known.empty() ? "none" : known, "; gradpress profile measures them");
}

Result<Cluster> read_cluster(const std::string& file) {
  const auto json = read_format(file, kFormat);
  if (!json) return tl::unexpected(json.error());
  return cluster_from_json(*json, file);
}

Result<Cluster> cluster_from_json(const Json& json, std::string_view origin) {
  const Field root(json, origin);
  Cluster cluster;
  const auto name_field = root.at("name");
  if (!name_field) return tl::unexpected(name_field.error());
  auto name = name_field->text();
  if (!name) return tl::unexpected(name.error());
  cluster.name = std::move(*name);
  if (root.has("about")) {
    auto about = root.at("about")->text();
    if (!about) return tl::unexpected(about.error());
    cluster.about = std::move(*about);
  }
  const auto machines = read_count(root, "machines", kMaxMachines);
  if (!machines) return tl::unexpected(machines.error());
  const auto workers = read_count(root, "workers_per_machine", kMaxWorkers);
  if (!workers) return tl::unexpected(workers.error());
  cluster.topology = {.machines = *machines, .workers = *workers};
  for (const bool inside : {true, false}) {
    const auto field = root.at(inside ? "intra" : "inter");
    if (!field) return tl::unexpected(field.error());
    const auto link = read_link(*field);
    if (!link) return tl::unexpected(link.error());
    (inside ? cluster.intra : cluster.inter) = *link;
  }
  if (auto s = read_decode_costs(root, cluster.decode_costs); !s) return tl::unexpected(s);
  const auto costs = root.at("codec_costs");
  if (!costs) return tl::unexpected(costs.error());
  if (auto s = read_costs(*costs, cluster); !s) return tl::unexpected(s);
  return cluster;
}

}  // namespace gradpress::plan
