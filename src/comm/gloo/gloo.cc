#include "comm/gloo/gloo.h"

#include <gloo/transport/tcp/device.h>

#include <exception>
#include <numeric>
#include <utility>

#include "base/thread_turns.h"
#include "comm/gloo/transport.h"
#include "comm/meeting.h"
#include "comm/quiet_pipe.h"
#include "comm/transport_group.h"

namespace gradpress::comm {

namespace {

Result<std::shared_ptr<gloo::transport::Device>> make_device(const GlooOptions& options,
                                                             const std::string& address) {
  const std::string& interface = options.interface;
  gloo::transport::tcp::attr attributes;
  if (interface.empty()) {
    attributes.hostname = address;
  } else {
    attributes.iface = interface;
  }
  try {
    // Gloo's thread inherits the mask and the turns.
    const QuietPipe quiet;
    const ThreadTurns turns(options.patient ? Turns::kPatient : Turns::kPrompt);
    return gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    return fail(Code::kInvalidArgument, "backend gloo: cannot use ",
                interface.empty() ? "address " : "interface ",
                interface.empty() ? address : interface, ": ", error.what(),
                "; set GLOO_SOCKET_IFNAME to the interface that the other machines reach");
  }
}

}  // namespace

bool has_gloo() { return true; }

Result<std::unique_ptr<Group>> connect_gloo(GlooOptions options) {
  auto meeting = meet({.world = options.world,
                       .name = options.name,
                       .backend = "gloo",
                       .patience = options.start_timeout,
                       .server = std::move(options.server)});
  if (!meeting) return tl::unexpected(meeting.error());
  auto device = make_device(options, (*meeting)->store->own_address());
  if (!device) return tl::unexpected(device.error());
  std::vector<unsigned> members(options.world.size);
  std::iota(members.begin(), members.end(), 0U);
  auto transport = GlooTransport::connect({.meeting = std::move(*meeting),
                                           .device = std::move(*device),
                                           .group = "world",
                                           .members = std::move(members),
                                           .rank = options.world.rank,
                                           .start_timeout = options.start_timeout});
  if (!transport) return tl::unexpected(transport.error());
  return std::make_unique<TransportGroup>(std::move(*transport), options.timeout);
}

}  // namespace gradpress::comm
