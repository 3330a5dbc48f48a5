// A small key-value store that the processes of one job meet at.
#pragma once

#include <gradpress/status.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>

#include "comm/store/socket.h"

namespace gradpress::comm::store {

/// Serves StoreClients on one thread of its own, for as long as it lives.
///
/// It believes nobody: a connection that does not greet, asks what is no question or keeps its
/// answers is closed, and keys, values, connections and the whole are bounded, so that strangers
/// can neither crash it nor fill the memory. It does not know who is a stranger: whoever reaches
/// the port may read and write the keys.
class StoreServer {
 public:
  /// Listens at once. Port 0: any free one.
  /// Errors: kInvalidArgument when it cannot listen there; `in_use` says whether another has the
  /// port.
  static Result<std::unique_ptr<StoreServer>> start(const Address& address, bool& in_use);
  /// Serves at a socket that listens already. Requires: check_listening() is well, or listen_at().
  static Result<std::unique_ptr<StoreServer>> serve(Socket listening);

  /// Goes on serving until all clients have closed their connections, at most kLinger: they may yet
  /// want to know why their calls failed. New ones find the port closed.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  unsigned port() const { return port_; }

  static constexpr std::chrono::seconds kLinger{3};
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;  ///< keys and values
  static constexpr std::size_t kMostConnections = 16384;

 private:
  class Service;

  StoreServer(Socket listening, Socket wake, unsigned port);

  const unsigned port_;
  Socket wake_;
  std::atomic<bool> stopping_ = false;
  std::unique_ptr<Service> service_;  ///< the thread's alone
  std::thread thread_;                ///< last, so that all it uses is there
};

}  // namespace gradpress::comm::store
