#include "comm/store/client.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

namespace gradpress::comm::store {

namespace {

using std::chrono::milliseconds;

/// One question of a get() waits this long at the store; then others may ask.
constexpr milliseconds kSlice{20};
constexpr milliseconds kFirstPause{10};
constexpr milliseconds kLongestPause{200};

Time now() { return steady_clock().now(); }

}  // namespace

Result<std::unique_ptr<StoreClient>> StoreClient::connect(const Address& address,
                                                          milliseconds patience) {
  const Time start = now();
  const Time deadline = start + patience;
  milliseconds pause = kFirstPause;
  while (true) {
    Status why;
    auto socket = connect_to(address, deadline);
    if (socket) {
      const auto own = store::own_address(*socket);
      if (!own) return tl::unexpected(own.error());
      std::unique_ptr<StoreClient> client(new StoreClient(address, std::move(*socket), *own));
      why = client->greet(std::min<Time>(deadline, now() + kPatience));
      if (why.is_ok()) return client;
    } else {
      why = socket.error();
      if (why.code() == Code::kInvalidArgument) return tl::unexpected(why);
    }
    if (now() + pause >= deadline) {
      return fail(Code::kPeerLost, "no store at ", address.text(), " within ",
                  std::chrono::duration<double>(now() - start).count(), " s: ", why.message(),
                  "; is its host (rank 0, or the launcher) running, and does the network let port ",
                  address.port, " through?");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

StoreClient::StoreClient(Address address, Socket socket, std::string own_address)
    : address_(std::move(address)),
      own_address_(std::move(own_address)),
      socket_(std::move(socket)) {}

Status StoreClient::greet(Time deadline) {
  const MutexLock lock(mutex_);
  Status status = send_all(kGreeting, deadline);
  if (!status.is_ok()) return status;
  std::string greeting;
  status = receive_all(greeting, kGreeting.size(), deadline);
  if (!status.is_ok()) {
    return Status::error(status.code(), status.message(),
                         " (what listens there may be no store of gradpress: torchrun's agent "
                         "holds MASTER_PORT; then set GRADPRESS_PORT to a free port)");
  }
  if (greeting != kGreeting) return lost("what listens there is no store of gradpress", false);
  return {};
}

Status StoreClient::set(std::string_view key, std::string_view value) {
  const auto answer = ask({.operation = Operation::kSet, .key = key, .value = value});
  return answer ? Status() : answer.error();
}

Result<std::string> StoreClient::get(std::string_view key, milliseconds patience) {
  const Time deadline = now() + patience;
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - now());
    const auto slice = std::clamp(left, milliseconds(0), kSlice);
    auto answer = ask({.operation = Operation::kGet,
                       .number = static_cast<std::uint64_t>(slice.count()),
                       .key = key});
    if (!answer) return tl::unexpected(answer.error());
    if (answer->outcome == Outcome::kOk) return std::move(answer->value);
    if (now() >= deadline) {
      return fail(Code::kPeerLost, "key \"", key, "\" has not come to the store at ",
                  address_.text(), " within ", patience.count(), " ms");
    }
  }
}

Result<std::string> StoreClient::find(std::string_view key) {
  auto answer = ask({.operation = Operation::kGet, .key = key});
  if (!answer) return tl::unexpected(answer.error());
  return std::move(answer->value);
}

Result<std::uint64_t> StoreClient::add(std::string_view key, std::uint64_t number) {
  const auto answer = ask({.operation = Operation::kAdd, .number = number, .key = key});
  if (!answer) return tl::unexpected(answer.error());
  return answer->number;
}

Result<std::string> StoreClient::compare_set(std::string_view key, std::string_view expected,
                                             std::string_view value) {
  auto answer =
      ask({.operation = Operation::kCompare, .key = key, .value = value, .other = expected});
  if (!answer) return tl::unexpected(answer.error());
  return std::move(answer->value);
}

Result<std::vector<StoreClient::Entry>> StoreClient::list(std::string_view prefix) {
  const auto answer = ask({.operation = Operation::kList, .key = prefix});
  if (!answer) return tl::unexpected(answer.error());
  std::vector<Entry> entries;
  Reader reader(answer->value);
  while (reader.ok() && !reader.at_end()) {
    const std::string_view key = reader.text();
    entries.push_back({.key = std::string(key), .value = std::string(reader.text())});
  }
  if (!reader.ok()) return fail(Code::kInternal, "store at ", address_.text(), ": a broken list");
  return entries;
}

Status StoreClient::set_will(std::string_view key, std::string_view value) {
  const auto answer = ask({.operation = Operation::kWill, .key = key, .value = value});
  return answer ? Status() : answer.error();
}

bool StoreClient::closed() const {
  const MutexLock lock(mutex_);
  return closed_;
}

Result<StoreClient::Answer> StoreClient::ask(const Question& question) {
  if (question.key.size() > kMostKey || question.value.size() > kMostValue) {
    return fail(Code::kInvalidArgument, "store: a key of ", question.key.size(),
                " B and a value of ", question.value.size(), " B; wanted at most ", kMostKey,
                " and ", kMostValue);
  }
  const std::string frame = Writer()
                                .u8(static_cast<std::uint8_t>(question.operation))
                                .u64(question.number)
                                .text(question.key)
                                .text(question.value)
                                .text(question.other)
                                .framed();
  const MutexLock lock(mutex_);
  if (!failure_.is_ok()) return tl::unexpected(failure_);
  const Time deadline = now() + kPatience;
  Status status = send_all(frame, deadline);
  if (!status.is_ok()) return tl::unexpected(status);
  std::string bytes;
  status = receive_all(bytes, kLengthBytes, deadline);
  if (!status.is_ok()) return tl::unexpected(status);
  const std::size_t length = Reader(bytes).u32();
  if (length > kMostAnswer) return tl::unexpected(lost("an answer is too long", false));
  status = receive_all(bytes, length, deadline);
  if (!status.is_ok()) return tl::unexpected(status);
  Reader reader(bytes);
  Answer answer{.outcome = static_cast<Outcome>(reader.u8()), .number = reader.u64()};
  answer.value = reader.text();
  if (!reader.ok()) return tl::unexpected(lost("an answer is broken", false));
  if (answer.outcome == Outcome::kRefused) {
    return fail(Code::kInvalidArgument, "store at ", address_.text(), ", key \"", question.key,
                "\": ", answer.value);
  }
  return answer;
}

Status StoreClient::send_all(std::string_view bytes, Time deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_ready(socket_, POLLOUT, deadline)) return lost("it takes no questions", false);
    } else if (errno != EINTR) {
      return lost(std::generic_category().message(errno), errno == EPIPE || errno == ECONNRESET);
    }
  }
  return {};
}

Status StoreClient::receive_all(std::string& bytes, std::size_t count, Time deadline) {
  bytes.resize(count);
  std::size_t done = 0;
  while (done < count) {
    const ssize_t got = ::recv(socket_.get(), bytes.data() + done, count - done, 0);
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (got == 0) {
      return lost("the connection was closed", true);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_ready(socket_, POLLIN, deadline)) return lost("no answer", false);
    } else if (errno != EINTR) {
      return lost(std::generic_category().message(errno), errno == ECONNRESET);
    }
  }
  return {};
}

Status StoreClient::lost(std::string_view why, bool closed) {
  closed_ = closed;
  failure_ =
      Status::error(Code::kPeerLost, "the store at ", address_.text(), " does not answer: ", why);
  socket_.reset();
  return failure_;
}

}  // namespace gradpress::comm::store
