// TCP sockets as values, their failures as errors. All are non-blocking and closed on exec.
#pragma once

#include <gradpress/status.h>

#include <string>
#include <utility>

#include "base/clock.h"

namespace gradpress::comm::store {

struct Address {
  std::string host = {};
  unsigned port = 0;

  /// "host:port".
  std::string text() const;
};

/// Owns a descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { reset(); }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  void reset();

 private:
  int descriptor_ = -1;
};

/// Listens at the address; where the host is no address of this machine (a name that others see
/// from outside), at all of this machine's. Port 0: any free one.
/// Errors: kInvalidArgument, with the system's words; `in_use` says whether another has the port.
Result<Socket> listen_at(const Address& address, bool& in_use);
/// Whether a socket from elsewhere is a TCP socket that listens; makes it non-blocking and closed
/// on exec. Errors: kInvalidArgument, saying what it is instead.
Status check_listening(const Socket& socket);
/// Errors: kInternal, with the system's words.
Result<unsigned> port_of(const Socket& listening);
/// Where a listening socket is bound; the host is empty when that is any address.
Result<Address> address_of(const Socket& listening);

/// One attempt. Errors: kPeerLost, with the system's words; kInvalidArgument on a name that does
/// not resolve.
Result<Socket> connect_to(const Address& address, Time deadline);
/// This machine's address on the way to the peer of a connected socket, as a number.
Result<std::string> own_address(const Socket& connected);

/// Whether the socket is ready for `events` (poll's) before the deadline.
bool wait_ready(const Socket& socket, short events, Time deadline);

}  // namespace gradpress::comm::store
