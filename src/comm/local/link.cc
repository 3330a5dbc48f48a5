#include "comm/local/link.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>

namespace gradpress::comm {

namespace {

struct Unit {
  std::string_view name;
  double factor;
};
constexpr std::array kRates = {Unit{"gbit", 1e9}, Unit{"mbit", 1e6}, Unit{"kbit", 1e3}};
constexpr std::array kLatencies = {Unit{"ms", 1e6}, Unit{"us", 1e3}};
constexpr std::string_view kUnlimited = "unlimited";
constexpr double kFastest = 1e15;         // bits a second
constexpr double kLongestLatency = 1e12;  // ns

/// A positive number with one of the units, in the base unit, rounded.
std::optional<std::uint64_t> parse_quantity(std::string_view text, std::span<const Unit> units,
                                            double least, double most) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const auto found = std::ranges::find(units, unit, &Unit::name);
  if (found == units.end()) return std::nullopt;
  const double scaled = value * found->factor;
  if (!(scaled >= least && scaled <= most)) return std::nullopt;
  return static_cast<std::uint64_t>(std::llround(scaled));
}

std::string quantity_text(double value, std::span<const Unit> units) {
  const auto fits = [value](const Unit& unit) { return value >= unit.factor; };
  auto unit = std::ranges::find_if(units, fits);
  if (unit == units.end()) --unit;
  std::string text;
  detail::append(text, value / unit->factor);
  return text.append(unit->name);
}

}  // namespace

Result<Link> parse_link(std::string_view text) {
  const std::size_t comma = text.find(',');
  const std::string_view rate_text = text.substr(0, comma);
  Link link;
  if (rate_text != kUnlimited) {
    const auto rate = parse_quantity(rate_text, kRates, 1.0, kFastest);
    if (!rate) {
      return fail(Code::kInvalidArgument, "link \"", text,
                  "\": wanted a rate such as 1gbit, 100mbit or 500kbit, or \"unlimited\", got \"",
                  rate_text, "\"");
    }
    link.bits_per_second = *rate;
  }
  if (comma == std::string_view::npos) return link;
  const std::string_view latency_text = text.substr(comma + 1);
  const auto latency = parse_quantity(latency_text, kLatencies, 0.0, kLongestLatency);
  if (!latency) {
    return fail(Code::kInvalidArgument, "link \"", text,
                "\": wanted a latency such as 50us or 1.5ms after the comma, got \"", latency_text,
                "\"");
  }
  link.latency = Time(*latency);
  return link;
}

std::string to_text(const Link& link) {
  std::string text = link.bits_per_second == 0
                         ? std::string(kUnlimited)
                         : quantity_text(static_cast<double>(link.bits_per_second), kRates);
  if (link.latency > Time(0)) {
    text += ',';
    text += quantity_text(static_cast<double>(link.latency.count()), kLatencies);
  }
  return text;
}

Time Card::take(std::size_t bytes, Time earliest) {
  if (bits_per_second_ == 0) return earliest;
  // 128 bits: 8e9 · bytes leaves 64 bits at 2 GB.
  __extension__ using Wide = unsigned __int128;
  const Wide nanoseconds = (Wide{bytes} * 8'000'000'000U + bits_per_second_ / 2) / bits_per_second_;
  free_at_ = std::max(free_at_, earliest) + Time(static_cast<std::int64_t>(nanoseconds));
  return free_at_;
}

Network::Network(const Topology& topology, const Link& inter, const Link& intra)
    : topology_(topology),
      inter_latency_(inter.latency),
      intra_latency_(intra.latency),
      machines_(topology.machines, Port{Card(inter.bits_per_second), Card(inter.bits_per_second)}),
      workers_(topology.workers(), Port{Card(intra.bits_per_second), Card(intra.bits_per_second)}) {
}

Transfer Network::transfer(unsigned from, unsigned to, std::size_t bytes, Time earliest) {
  const bool intra = topology_.same_machine(from, to);
  const MutexLock lock(mutex_);
  Port& sender = intra ? workers_[from] : machines_[topology_.machine_of(from)];
  Port& receiver = intra ? workers_[to] : machines_[topology_.machine_of(to)];
  const Time sent = sender.egress.take(bytes, earliest);
  const Time received = receiver.ingress.take(bytes, earliest);
  return {.sent = sent,
          .delivered = std::max(sent, received) + (intra ? intra_latency_ : inter_latency_)};
}

}  // namespace gradpress::comm
