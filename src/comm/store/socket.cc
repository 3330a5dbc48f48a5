#include "comm/store/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

namespace gradpress::comm::store {

namespace {

std::string words_of(int error) { return std::generic_category().message(error); }

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> resolve(const Address& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string port = std::to_string(address.port);
  const int error = getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(), port.c_str(),
                                &hints, &list);
  if (error != 0) {
    return fail(Code::kInvalidArgument, "host \"", address.host, "\": ", gai_strerror(error));
  }
  return AddressList(list, &freeaddrinfo);
}

Socket make_socket(const addrinfo& info) {
  return Socket(
      ::socket(info.ai_family, info.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, info.ai_protocol));
}

/// 0, or the system's error.
int bind_and_listen(const Socket& socket, const addrinfo& info) {
  const int on = 1;
  const int off = 0;
  (void)setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (info.ai_family == AF_INET6) {
    (void)setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (bind(socket.get(), info.ai_addr, info.ai_addrlen) != 0) return errno;
  return listen(socket.get(), SOMAXCONN) == 0 ? 0 : errno;
}

Result<Socket> listen_once(const Address& address, int& error) {
  const auto list = resolve(address, AI_PASSIVE);
  if (!list) return tl::unexpected(list.error());
  error = EADDRNOTAVAIL;
  for (const addrinfo* info = list->get(); info != nullptr; info = info->ai_next) {
    Socket socket = make_socket(*info);
    if (!socket) continue;
    error = bind_and_listen(socket, *info);
    if (error == 0) return socket;
    if (error == EADDRINUSE) break;
  }
  return fail(Code::kInvalidArgument, "cannot listen at ", address.text(), ": ", words_of(error));
}

/// The number of an address, with its port if wanted.
Result<std::string> number_text(const sockaddr_storage& name) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* number = nullptr;
  if (name.ss_family == AF_INET) {
    number = &reinterpret_cast<const sockaddr_in&>(name).sin_addr;
  } else {
    number = &reinterpret_cast<const sockaddr_in6&>(name).sin6_addr;
  }
  if (inet_ntop(name.ss_family, number, text.data(), text.size()) == nullptr) {
    return fail(Code::kInternal, "own address: ", words_of(errno));
  }
  return std::string(text.data());
}

Result<sockaddr_storage> name_of(const Socket& socket) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &length) != 0) {
    return fail(Code::kInternal, "own address: ", words_of(errno));
  }
  return name;
}

}  // namespace

std::string Address::text() const {
  const bool number6 = host.find(':') != std::string::npos;
  return (number6 ? '[' + host + ']' : host) + ':' + std::to_string(port);
}

void Socket::reset() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

Result<Socket> listen_at(const Address& address, bool& in_use) {
  int error = 0;
  auto socket = listen_once(address, error);
  if (!socket && error == EADDRNOTAVAIL) {
    socket = listen_once({.host = "", .port = address.port}, error);
  }
  in_use = error == EADDRINUSE;
  return socket;
}

Result<unsigned> port_of(const Socket& listening) {
  const auto name = name_of(listening);
  if (!name) return tl::unexpected(name.error());
  return ntohs(name->ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(*name).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(*name).sin_port);
}

Status check_listening(const Socket& socket) {
  const auto wrong = [&socket](std::string_view what) {
    return Status::error(Code::kInvalidArgument, "descriptor ", socket.get(),
                         ": wanted a TCP socket that listens, got ", what);
  };
  const auto option = [&socket](int name) {
    int value = -1;
    socklen_t length = sizeof value;
    (void)getsockopt(socket.get(), SOL_SOCKET, name, &value, &length);
    return value;
  };
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0) return wrong("none that is open");
  if (option(SO_TYPE) < 0) return wrong("no socket");
  if (option(SO_PROTOCOL) != IPPROTO_TCP) return wrong("a socket that is not of TCP");
  if (option(SO_ACCEPTCONN) != 1) return wrong("one that does not listen");
  (void)::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK);
  (void)::fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
  return {};
}

Result<Address> address_of(const Socket& listening) {
  const auto name = name_of(listening);
  if (!name) return tl::unexpected(name.error());
  auto host = number_text(*name);
  const auto port = port_of(listening);
  if (!host) return tl::unexpected(host.error());
  if (!port) return tl::unexpected(port.error());
  const bool any = *host == "0.0.0.0" || *host == "::";
  return Address{.host = any ? std::string() : std::move(*host), .port = *port};
}

Result<Socket> connect_to(const Address& address, Time deadline) {
  const auto list = resolve(address, 0);
  if (!list) return tl::unexpected(list.error());
  int error = ETIMEDOUT;
  for (const addrinfo* info = list->get(); info != nullptr; info = info->ai_next) {
    Socket socket = make_socket(*info);
    if (!socket) {
      error = errno;
      continue;
    }
    error = ::connect(socket.get(), info->ai_addr, info->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t length = sizeof error;
      error = ETIMEDOUT;
      if (wait_ready(socket, POLLOUT, deadline)) {
        (void)getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      }
    }
    if (error != 0) continue;
    const int on = 1;
    (void)setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return socket;
  }
  return fail(Code::kPeerLost, words_of(error));
}

Result<std::string> own_address(const Socket& connected) {
  const auto name = name_of(connected);
  if (!name) return tl::unexpected(name.error());
  return number_text(*name);
}

bool wait_ready(const Socket& socket, short events, Time deadline) {
  while (true) {
    const Time left = deadline - steady_clock().now();
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    pollfd entry{.fd = socket.get(), .events = events, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::clamp<std::int64_t>(ms, 0, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (steady_clock().now() >= deadline) return false;
  }
}

}  // namespace gradpress::comm::store
