// What a module of one MPI implementation offers. The core is built without MPI; one shared object
// per implementation, made of the same source, is opened at run time (mpi.h) and speaks to the core
// through these interfaces alone.
#pragma once

#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace gradpress::comm {

/// A call to MPI under way: the bits of its MPI_Request.
struct MpiRequest {
  std::uint64_t bits = 0;
  std::size_t bytes = 0;  ///< what a receive wants
  bool receives = false;
};

/// One communicator. Messages from one rank to another with one tag arrive in the order of posting.
/// Threads: any.
/// Errors:  what MPI says, as kInternal; kInvalidArgument on messages beyond MPI's int counts.
class MpiPort {
 public:
  /// Frees the communicator, unless it was abandoned. Requires: nothing is under way.
  virtual ~MpiPort() = default;
  MpiPort(const MpiPort&) = delete;
  MpiPort& operator=(const MpiPort&) = delete;

  virtual unsigned rank() const noexcept = 0;
  virtual unsigned size() const noexcept = 0;
  /// Tags go from 0 to this.
  virtual std::uint32_t most_tag() const noexcept = 0;

  /// Each begins and returns at once; the bytes must live until test() said that it is done.
  virtual Result<MpiRequest> send(unsigned to, std::uint32_t tag,
                                  std::span<const std::byte> bytes) = 0;
  virtual Result<MpiRequest> receive(unsigned from, std::uint32_t tag,
                                     std::span<std::byte> bytes) = 0;
  /// From rank 0 to all, who call it with the same size and in the same order.
  virtual Result<MpiRequest> broadcast(std::span<std::byte> bytes) = 0;

  /// Lets MPI work, and says whether the request is done; then it is gone.
  /// Errors: also kInvalidArgument when a message of another size came.
  virtual Result<bool> test(MpiRequest& request) = 0;
  /// Asks MPI to give a receive up; test() says when it has. Messages under way are not given up.
  virtual void cancel(MpiRequest& request) = 0;

  /// A communicator of some of the ranks, in that order. `tag` keeps apart what is formed at the
  /// same time. Blocks until all of them are here: they must have said before that they come.
  virtual Result<std::unique_ptr<MpiPort>> subgroup(std::span<const unsigned> ranks,
                                                    std::uint32_t tag) = 0;

  /// After a failure: the communicator is kept for ever, because freeing it needs the others, and
  /// this process will not finalise MPI, because that waits for all.
  virtual void abandon() noexcept = 0;

 protected:
  MpiPort() = default;
};

/// A communicator that is being formed.
struct MpiOpening {
  std::unique_ptr<MpiPort> port = {};
  MpiRequest request = {};  ///< port->test() says when the port may be used
};

/// MPI in this process. Lives until the process ends.
class MpiModule {
 public:
  virtual ~MpiModule() = default;
  MpiModule(const MpiModule&) = delete;
  MpiModule& operator=(const MpiModule&) = delete;

  /// The library's own words for itself, the first line of them.
  virtual std::string_view library() const noexcept = 0;
  /// Begins to form a communicator of all ranks; all call it in the same order.
  virtual Result<MpiOpening> open() = 0;

 protected:
  MpiModule() = default;
};

/// The one function that a module exports, under the name kMpiModuleEntry: starts MPI unless it
/// runs, and finalises it when the process exits well. `version` is that of the library which asks.
/// Errors: kInvalidArgument when MPI gives less than MPI_THREAD_MULTIPLE (lanes are threads), or on
///         a module of another version.
using MpiModuleEntry = void(std::string_view version, Result<MpiModule*>& module);
inline constexpr char kMpiModuleEntry[] = "gradpress_mpi_module";

}  // namespace gradpress::comm
