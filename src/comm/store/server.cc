#include "comm/store/server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/store/wire.h"

namespace gradpress::comm::store {

namespace {

/// What was asked, in the body's memory.
struct Question {
  Operation operation = Operation::kGet;
  std::uint64_t number = 0;
  std::string_view key = {};
  std::string_view value = {};
  std::string_view other = {};
};

std::optional<Question> read_question(std::string_view body) {
  Reader reader(body);
  const std::uint8_t operation = reader.u8();
  Question question{.operation = static_cast<Operation>(operation), .number = reader.u64()};
  question.key = reader.text();
  question.value = reader.text();
  question.other = reader.text();
  if (!reader.ok() || !reader.at_end()) return std::nullopt;
  if (operation < 1 || operation > static_cast<std::uint8_t>(Operation::kWill)) return std::nullopt;
  return question;
}

std::string answer(Outcome outcome, std::string_view value = {}, std::uint64_t number = 0) {
  return Writer().u8(static_cast<std::uint8_t>(outcome)).u64(number).text(value).framed();
}

struct Wait {
  std::string key;
  Time deadline{0};
};

struct Connection {
  Socket socket;
  bool greeted = false;
  std::string in;
  std::string out;  ///< not yet sent; the next question waits until it is
  std::optional<Wait> wait = {};
  std::string will_key;
  std::string will_value;
  bool ended = false;
};

/// Waits a client may ask for in one question: it asks again, so that no dead one is kept waiting.
constexpr std::chrono::seconds kLongestWait{10};

}  // namespace

/// The thread's state: connections and data.
class StoreServer::Service {
 public:
  explicit Service(Socket listening) : listening_(std::move(listening)) {}

  /// Takes no new clients.
  void retire() { listening_.reset(); }
  bool deserted() const { return connections_.empty(); }

  /// One turn: sleeps until something happens on a socket or `until`, and deals with it.
  void turn(const Socket& wake, Time until) {
    entries_.clear();
    entries_.push_back({.fd = wake.get(), .events = POLLIN, .revents = 0});
    // Entries without a descriptor are passed over.
    const bool room = connections_.size() < kMostConnections;
    entries_.push_back({.fd = room ? listening_.get() : -1, .events = POLLIN, .revents = 0});
    for (const Connection& one : connections_) {
      const bool sending = !one.out.empty();
      entries_.push_back({.fd = one.socket.get(),
                          .events = static_cast<short>(sending ? POLLOUT : POLLIN),
                          .revents = 0});
      if (one.wait) until = std::min(until, one.wait->deadline);
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock().now()).count();
    const int ready = poll(entries_.data(), entries_.size(),
                           static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000)));
    if (ready > 0) {
      if (entries_[0].revents != 0) {
        std::array<char, 8> count{};
        (void)!::read(wake.get(), count.data(), count.size());
      }
      for (std::size_t i = 0; i < connections_.size(); ++i) {
        if (entries_[i + 2].revents != 0) serve(connections_[i]);
      }
      if (entries_[1].revents != 0) accept_all();
    }
    end_waits();
    bury();
  }

 private:
  void accept_all() {
    while (connections_.size() < kMostConnections) {
      Socket socket(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket) return;
      Connection fresh;
      fresh.socket = std::move(socket);
      fresh.out = kGreeting;
      flush(fresh);
      connections_.push_back(std::move(fresh));
    }
  }

  void serve(Connection& one) {
    if (!one.out.empty()) flush(one);
    if (one.out.empty()) receive(one);
    while (!one.ended && one.out.empty() && !one.wait && next(one)) {
    }
  }

  static void flush(Connection& one) {
    while (!one.out.empty()) {
      const ssize_t sent = ::send(one.socket.get(), one.out.data(), one.out.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        one.out.erase(0, static_cast<std::size_t>(sent));
      } else if (sent < 0 && errno == EINTR) {
        continue;
      } else {
        one.ended = one.ended || (errno != EAGAIN && errno != EWOULDBLOCK);
        return;
      }
    }
  }

  static void receive(Connection& one) {
    std::array<char, 16384> part{};
    while (one.in.size() <= kMostQuestion + kLengthBytes) {
      const ssize_t got = ::recv(one.socket.get(), part.data(), part.size(), 0);
      if (got > 0) {
        one.in.append(part.data(), static_cast<std::size_t>(got));
        if (one.wait && one.in.size() > kMostQuestion) one.ended = true;
      } else if (got < 0 && errno == EINTR) {
        continue;
      } else {
        one.ended = one.ended || got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
        return;
      }
    }
  }

  /// Deals with the next thing the client said, if it is complete.
  bool next(Connection& one) {
    if (!one.greeted) {
      const std::size_t heard = std::min(one.in.size(), kGreeting.size());
      if (one.in.compare(0, heard, kGreeting, 0, heard) != 0) one.ended = true;
      if (heard < kGreeting.size() || one.ended) return false;
      one.in.erase(0, kGreeting.size());
      one.greeted = true;
      return true;
    }
    if (one.in.size() < kLengthBytes) return false;
    const std::size_t length = Reader(one.in).u32();
    if (length > kMostQuestion) {
      one.ended = true;
      return false;
    }
    if (one.in.size() - kLengthBytes < length) return false;
    const auto question = read_question(std::string_view(one.in).substr(kLengthBytes, length));
    if (question) {
      reply(one, *question);
    } else {
      one.ended = true;
    }
    one.in.erase(0, kLengthBytes + length);
    flush(one);
    return true;
  }

  void reply(Connection& one, const Question& question) {
    if (question.key.size() > kMostKey || question.value.size() > kMostValue) {
      one.out = answer(Outcome::kRefused, "a key or value is too long");
      return;
    }
    const auto found = data_.find(question.key);
    const std::string_view present = found == data_.end() ? std::string_view() : found->second;
    switch (question.operation) {
      case Operation::kSet:
        one.out = put(question.key, question.value);
        return;
      case Operation::kGet:
        if (found == data_.end() && question.number > 0) {
          one.wait = Wait{
              .key = std::string(question.key),
              .deadline =
                  steady_clock().now() +
                  std::min<std::chrono::milliseconds>(
                      std::chrono::milliseconds(std::min<std::uint64_t>(question.number, 1U << 30)),
                      kLongestWait)};
          return;
        }
        one.out = answer(found == data_.end() ? Outcome::kAbsent : Outcome::kOk, present);
        return;
      case Operation::kAdd: {
        std::uint64_t sum = 0;
        (void)std::from_chars(present.data(), present.data() + present.size(), sum);
        sum += question.number;
        one.out = put(question.key, std::to_string(sum), sum);
        return;
      }
      case Operation::kCompare:
        if (present == question.other) {
          one.out = put(question.key, question.value);
        } else {
          one.out = answer(Outcome::kOk, present);
        }
        return;
      case Operation::kList:
        one.out = list(question.key);
        return;
      case Operation::kWill:
        one.will_key = question.key;
        one.will_value = question.value;
        one.out = answer(Outcome::kOk);
        return;
    }
  }

  /// Answers with the value, so that a comparison that held is told the same as one that did not.
  std::string put(std::string_view key, std::string_view value, std::uint64_t number = 0) {
    const auto found = data_.find(key);
    const std::size_t before = found == data_.end() ? 0 : key.size() + found->second.size();
    const std::size_t after = value.empty() ? 0 : key.size() + value.size();
    if (bytes_ - before + after > kMostBytes) {
      return answer(Outcome::kRefused, "the store is full");
    }
    bytes_ = bytes_ - before + after;
    if (value.empty()) {
      if (found != data_.end()) data_.erase(found);
    } else if (found != data_.end()) {
      found->second = value;
    } else {
      data_.emplace(key, value);
    }
    return answer(Outcome::kOk, value, number);
  }

  std::string list(std::string_view prefix) const {
    Writer entries;
    for (auto it = data_.lower_bound(prefix);
         it != data_.end() && std::string_view(it->first).starts_with(prefix); ++it) {
      entries.text(it->first).text(it->second);
      if (entries.bytes().size() > kMostAnswer / 2) {
        return answer(Outcome::kRefused, "the list is too long");
      }
    }
    return answer(Outcome::kOk, entries.bytes());
  }

  /// Answers those whose key has come, or whose time is over.
  void end_waits() {
    const Time now = steady_clock().now();
    for (Connection& one : connections_) {
      if (!one.wait) continue;
      const auto found = data_.find(one.wait->key);
      if (found != data_.end()) {
        one.out = answer(Outcome::kOk, found->second);
      } else if (now >= one.wait->deadline) {
        one.out = answer(Outcome::kAbsent);
      } else {
        continue;
      }
      one.wait.reset();
      flush(one);
    }
  }

  /// Executes the wills of the connections that ended. Those may end others' waits.
  void bury() {
    bool willed = false;
    for (const Connection& one : connections_) {
      if (!one.ended || one.will_key.empty()) continue;
      (void)put(one.will_key, one.will_value);
      willed = true;
    }
    std::erase_if(connections_, [](const Connection& one) { return one.ended; });
    if (willed) end_waits();
  }

  Socket listening_;
  std::vector<pollfd> entries_;
  std::vector<Connection> connections_;
  std::map<std::string, std::string, std::less<>> data_;
  std::size_t bytes_ = 0;
};

Result<std::unique_ptr<StoreServer>> StoreServer::start(const Address& address, bool& in_use) {
  auto listening = listen_at(address, in_use);
  if (!listening) return tl::unexpected(listening.error());
  return serve(std::move(*listening));
}

Result<std::unique_ptr<StoreServer>> StoreServer::serve(Socket listening) {
  const auto port = port_of(listening);
  if (!port) return tl::unexpected(port.error());
  Socket wake(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake) return fail(Code::kInternal, "store: no descriptor left");
  return std::unique_ptr<StoreServer>(
      new StoreServer(std::move(listening), std::move(wake), *port));
}

StoreServer::StoreServer(Socket listening, Socket wake, unsigned port)
    : port_(port),
      wake_(std::move(wake)),
      service_(std::make_unique<Service>(std::move(listening))),
      thread_([this] {
        while (!stopping_) service_->turn(wake_, steady_clock().now() + std::chrono::seconds(1));
        service_->retire();
        const Time end = steady_clock().now() + kLinger;
        while (!service_->deserted() && steady_clock().now() < end) service_->turn(wake_, end);
      }) {}

StoreServer::~StoreServer() {
  stopping_ = true;
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

}  // namespace gradpress::comm::store
