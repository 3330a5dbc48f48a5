// One process's way to the job's store.
#pragma once

#include <gradpress/status.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "comm/store/socket.h"
#include "comm/store/wire.h"

namespace gradpress::comm::store {

/// One connection. Keys are at most kMostKey bytes, values kMostValue; no key has an empty value.
///
/// Threads: any number at once; one question is asked at a time, and a get() that waits lets others
///          ask in between.
/// Errors:  kPeerLost when the store no longer answers: `closed()` tells whether its process ended
///          or has merely fallen silent. Then all later questions fail as well.
class StoreClient {
 public:
  struct Entry {
    std::string key;
    std::string value;
  };

  /// Keeps trying for `patience`: whoever hosts the store may come later.
  /// Errors: kPeerLost with the address, the seconds waited and what happened last;
  ///         kInvalidArgument on a host that does not resolve.
  static Result<std::unique_ptr<StoreClient>> connect(const Address& address,
                                                      std::chrono::milliseconds patience);
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  const Address& address() const { return address_; }
  /// This machine's address on the way to the store, as a number.
  const std::string& own_address() const { return own_address_; }

  /// An empty value removes the key.
  Status set(std::string_view key, std::string_view value);
  /// Waits for the key. Errors: also kPeerLost when it has not come within `patience`.
  Result<std::string> get(std::string_view key, std::chrono::milliseconds patience);
  /// The key's value, or empty.
  Result<std::string> find(std::string_view key);
  /// Adds to a number that begins at 0; returns the sum.
  Result<std::uint64_t> add(std::string_view key, std::uint64_t number);
  /// Sets the key if its value is `expected` (empty: if there is no such key). Returns its value
  /// then: of several that claim a key, all learn who was first.
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view value);
  /// All whose key begins with `prefix`, sorted.
  Result<std::vector<Entry>> list(std::string_view prefix);
  /// What the store sets when this connection ends without having taken it back (an empty key
  /// does): so that others learn of a process that was killed.
  Status set_will(std::string_view key, std::string_view value);

  /// Whether the store's end of the connection was closed.
  bool closed() const GRADPRESS_EXCLUDES(mutex_);

  /// How long an answer may take before the store counts as silent.
  static constexpr std::chrono::seconds kPatience{5};

 private:
  struct Question {
    Operation operation = Operation::kGet;
    std::uint64_t number = 0;
    std::string_view key = {};
    std::string_view value = {};
    std::string_view other = {};
  };
  struct Answer {
    Outcome outcome = Outcome::kOk;
    std::uint64_t number = 0;
    std::string value = {};
  };

  StoreClient(Address address, Socket socket, std::string own_address);

  Result<Answer> ask(const Question& question) GRADPRESS_EXCLUDES(mutex_);
  Status send_all(std::string_view bytes, Time deadline) GRADPRESS_REQUIRES(mutex_);
  Status receive_all(std::string& bytes, std::size_t count, Time deadline)
      GRADPRESS_REQUIRES(mutex_);
  Status greet(Time deadline) GRADPRESS_EXCLUDES(mutex_);
  Status lost(std::string_view why, bool closed) GRADPRESS_REQUIRES(mutex_);

  const Address address_;
  const std::string own_address_;

  mutable Mutex mutex_;
  Socket socket_ GRADPRESS_GUARDED_BY(mutex_);
  Status failure_ GRADPRESS_GUARDED_BY(mutex_);
  bool closed_ GRADPRESS_GUARDED_BY(mutex_) = false;
};

}  // namespace gradpress::comm::store
