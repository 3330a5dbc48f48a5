// Emulated links: when a message that leaves now has arrived.
#pragma once

#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "comm/topology.h"

namespace gradpress::comm {

/// Both directions alike.
struct Link {
  std::uint64_t bits_per_second = 0;  ///< 0: unlimited
  Time latency{0};

  friend bool operator==(const Link&, const Link&) = default;
};

/// "1gbit", "100mbit,50us", "unlimited". Rates in gbit, mbit or kbit a second, latencies in us or
/// ms, both decimal.
/// Errors: kInvalidArgument, saying what was wanted in place of what.
Result<Link> parse_link(std::string_view text);
/// The shortest such text.
std::string to_text(const Link& link);

/// One direction of a card: sends or receives one message at a time.
class Card {
 public:
  explicit Card(std::uint64_t bits_per_second) : bits_per_second_(bits_per_second) {}
  /// Takes the card for `bytes` from `earliest` on, behind what it was taken for before.
  /// Returns when they are through.
  Time take(std::size_t bytes, Time earliest);

 private:
  std::uint64_t bits_per_second_;
  Time free_at_{0};
};

struct Transfer {
  Time sent{0};       ///< the bytes have left the sender's card
  Time delivered{0};  ///< and have arrived
};

/// The cards of a world: one per worker for its own machine, one per machine for the others, shared
/// by the machine's workers. A message takes its sender's card and its receiver's at the same time
/// and arrives a latency after both are through with it.
/// Threads: any number at once.
class Network {
 public:
  Network(const Topology& topology, const Link& inter, const Link& intra);

  const Topology& topology() const { return topology_; }
  Transfer transfer(unsigned from, unsigned to, std::size_t bytes, Time earliest)
      GRADPRESS_EXCLUDES(mutex_);

 private:
  struct Port {
    Card egress;
    Card ingress;
  };

  const Topology topology_;
  const Time inter_latency_;
  const Time intra_latency_;

  Mutex mutex_;
  std::vector<Port> machines_ GRADPRESS_GUARDED_BY(mutex_);
  std::vector<Port> workers_ GRADPRESS_GUARDED_BY(mutex_);
};

}  // namespace gradpress::comm
