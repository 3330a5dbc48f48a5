#include "loopback.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace gradpress::cli {

namespace {

constexpr std::size_t kStreamBytes = std::size_t{64} << 20;
constexpr std::size_t kBlockBytes = std::size_t{256} << 10;
constexpr unsigned kPings = 201;

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

  bool send_all(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
    return true;
  }
  bool receive_all(std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t got = ::recv(descriptor_, bytes.data(), bytes.size(), 0);
      if (got <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
    return true;
  }

 private:
  int descriptor_;
};

Status failure(const char* what) {
  return Status::error(Code::kInternal, "loopback: ", what, ": ",
                       std::generic_category().message(errno));
}

Result<std::pair<Socket, Socket>> connected() {
  const Socket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  sockaddr storage{};
  std::memcpy(&storage, &address, sizeof storage);
  if (!listener.is_open() || ::bind(listener.get(), &storage, length) != 0 ||
      ::listen(listener.get(), 1) != 0 || ::getsockname(listener.get(), &storage, &length) != 0) {
    return tl::unexpected(failure("cannot listen on 127.0.0.1"));
  }
  Socket client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!client.is_open() || ::connect(client.get(), &storage, length) != 0) {
    return tl::unexpected(failure("cannot connect to 127.0.0.1"));
  }
  Socket server(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!server.is_open()) return tl::unexpected(failure("cannot accept"));
  const int on = 1;
  (void)::setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  (void)::setsockopt(server.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return std::pair(std::move(client), std::move(server));
}

/// The other side: sends every ping back, then takes the stream and says so.
void answer(const Socket& socket) {
  std::byte ping{};
  for (unsigned i = 0; i < kPings; ++i) {
    if (!socket.receive_all(std::span(&ping, 1)) || !socket.send_all(std::span(&ping, 1))) return;
  }
  std::vector<std::byte> block(kBlockBytes);
  for (std::size_t got = 0; got < kStreamBytes; got += block.size()) {
    if (!socket.receive_all(block)) return;
  }
  (void)socket.send_all(std::span(&ping, 1));
}

Result<Loopback> ask(const Socket& socket) {
  using SteadyClock = std::chrono::steady_clock;
  using Microseconds = std::chrono::duration<double, std::micro>;
  std::byte ping{};
  std::vector<double> trips;
  for (unsigned i = 0; i < kPings; ++i) {
    const auto start = SteadyClock::now();
    if (!socket.send_all(std::span(&ping, 1)) || !socket.receive_all(std::span(&ping, 1))) {
      return tl::unexpected(failure("a ping was not answered"));
    }
    trips.push_back(Microseconds(SteadyClock::now() - start).count());
  }
  std::ranges::sort(trips);
  const std::vector<std::byte> block(kBlockBytes);
  const auto start = SteadyClock::now();
  for (std::size_t sent = 0; sent < kStreamBytes; sent += block.size()) {
    if (!socket.send_all(block)) return tl::unexpected(failure("the stream broke off"));
  }
  if (!socket.receive_all(std::span(&ping, 1))) {
    return tl::unexpected(failure("the stream broke off"));
  }
  const double us = Microseconds(SteadyClock::now() - start).count();
  return Loopback{.gbps = 8.0 * static_cast<double>(kStreamBytes) / (us * 1e3),
                  .latency_us = 0.5 * trips[trips.size() / 2]};
}

}  // namespace

Result<Loopback> measure_loopback() {
  auto ends = connected();
  if (!ends) return tl::unexpected(ends.error());
  std::thread other([&] { answer(ends->second); });
  auto result = ask(ends->first);
  // A failed question leaves the other side waiting: that ends its wait.
  (void)::shutdown(ends->first.get(), SHUT_RDWR);
  other.join();
  return result;
}

}  // namespace gradpress::cli
