// The module: everything that includes mpi.h. Compiled once per MPI implementation.
#include "comm/mpi/module.h"

#include <gradpress/version.h>
#include <mpi.h>

#include <array>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/calls.h"

namespace gradpress::comm {

namespace {

/// What decides whether the process may finalise MPI.
struct ProcessState {
  std::atomic<int> ports = 0;
  std::atomic<bool> failed = false;
};

const Result<MpiCalls>& calls() {
  static const Result<MpiCalls> found = find_calls();
  return found;
}

/// Requires: they were found, which make_module has seen to.
const MpiCalls& mpi() { return *calls(); }

ProcessState& process_state() {
  static ProcessState state;
  return state;
}

Status mpi_error(std::string_view what, int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (mpi().error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  return Status::error(Code::kInternal, what, ": MPI error ", code, ", ",
                       std::string_view(text.data(), static_cast<std::size_t>(length)));
}

/// An MPI_Request is a pointer in one implementation and an int in another.
constexpr std::size_t kRequestBytes = sizeof(MPI_Request);
static_assert(kRequestBytes <= sizeof(MpiRequest::bits));

MPI_Request native(const MpiRequest& request) {
  MPI_Request out = MPI_REQUEST_NULL;
  std::memcpy(&out, &request.bits, kRequestBytes);
  return out;
}

void set_native(MpiRequest& request, MPI_Request value) {
  request.bits = 0;
  std::memcpy(&request.bits, &value, kRequestBytes);
}

Status check_count(std::size_t bytes) {
  if (bytes <= INT_MAX) return {};
  return Status::error(Code::kInvalidArgument, "a message of ", bytes,
                       " B: MPI counts in int, wanted at most ", INT_MAX);
}

class Port final : public MpiPort {
 public:
  Port() { ++process_state().ports; }
  ~Port() override {
    --process_state().ports;
    if (!abandoned_ && communicator_ != MPI_COMM_NULL) (void)mpi().comm_free(&communicator_);
  }

  /// Once the communicator is there. Errors then are returned: of the world itself they may be
  /// fatal, which is for the program to say.
  Status settle() {
    settled_ = true;
    if (const int code = mpi().comm_set_errhandler(communicator_, MPI_ERRORS_RETURN); code != 0) {
      return mpi_error("MPI_Comm_set_errhandler", code);
    }
    if (const int code = mpi().comm_rank(communicator_, &rank_); code != 0) {
      return mpi_error("MPI_Comm_rank", code);
    }
    if (const int code = mpi().comm_size(communicator_, &size_); code != 0) {
      return mpi_error("MPI_Comm_size", code);
    }
    void* value = nullptr;
    int found = 0;
    // The bound is the world's: not every implementation hands it to new communicators.
    if (const int code =
            mpi().comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&value), &found);
        code != 0 || found == 0) {
      return mpi_error("MPI_TAG_UB", code);
    }
    most_tag_ = static_cast<std::uint32_t>(*static_cast<int*>(value));
    return {};
  }
  MPI_Comm& communicator() { return communicator_; }

  unsigned rank() const noexcept override { return static_cast<unsigned>(rank_); }
  unsigned size() const noexcept override { return static_cast<unsigned>(size_); }
  std::uint32_t most_tag() const noexcept override { return most_tag_; }

  Result<MpiRequest> send(unsigned to, std::uint32_t tag,
                          std::span<const std::byte> bytes) override {
    const Status fits = check_count(bytes.size());
    if (!fits.is_ok()) return tl::unexpected(fits);
    MPI_Request request = MPI_REQUEST_NULL;
    const int code =
        mpi().isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, static_cast<int>(to),
                    static_cast<int>(tag), communicator_, &request);
    return begun("MPI_Isend", code, request, {});
  }

  Result<MpiRequest> receive(unsigned from, std::uint32_t tag,
                             std::span<std::byte> bytes) override {
    const Status fits = check_count(bytes.size());
    if (!fits.is_ok()) return tl::unexpected(fits);
    MPI_Request request = MPI_REQUEST_NULL;
    const int code =
        mpi().irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, static_cast<int>(from),
                    static_cast<int>(tag), communicator_, &request);
    return begun("MPI_Irecv", code, request, {.bytes = bytes.size(), .receives = true});
  }

  Result<MpiRequest> broadcast(std::span<std::byte> bytes) override {
    const Status fits = check_count(bytes.size());
    if (!fits.is_ok()) return tl::unexpected(fits);
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = mpi().ibcast(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, 0,
                                  communicator_, &request);
    return begun("MPI_Ibcast", code, request, {});
  }

  Result<bool> test(MpiRequest& request) override {
    MPI_Request under_way = native(request);
    int done = 0;
    MPI_Status status;
    const int code = mpi().test(&under_way, &done, &status);
    set_native(request, under_way);
    if (code != MPI_SUCCESS) return tl::unexpected(mpi_error("MPI_Test", code));
    if (done == 0) return false;
    if (!settled_) {
      const Status settled = settle();
      if (!settled.is_ok()) return tl::unexpected(settled);
    }
    int cancelled = 0;
    int count = 0;
    if (!request.receives || mpi().test_cancelled(&status, &cancelled) != MPI_SUCCESS ||
        cancelled != 0) {
      return true;
    }
    (void)mpi().get_count(&status, MPI_BYTE, &count);
    if (std::cmp_not_equal(count, request.bytes)) {
      return fail(Code::kInvalidArgument, "wanted ", request.bytes, " B, a message of ", count,
                  " B came");
    }
    return true;
  }

  void cancel(MpiRequest& request) override {
    MPI_Request under_way = native(request);
    if (under_way != MPI_REQUEST_NULL) (void)mpi().cancel(&under_way);
  }

  Result<std::unique_ptr<MpiPort>> subgroup(std::span<const unsigned> ranks,
                                            std::uint32_t tag) override {
    std::vector<int> members(ranks.begin(), ranks.end());
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group some = MPI_GROUP_NULL;
    int code = mpi().comm_group(communicator_, &all);
    if (code == MPI_SUCCESS) {
      code = mpi().group_incl(all, static_cast<int>(members.size()), members.data(), &some);
    }
    auto port = std::make_unique<Port>();
    if (code == MPI_SUCCESS) {
      code = mpi().comm_create_group(communicator_, some, static_cast<int>(tag),
                                     &port->communicator());
    }
    if (some != MPI_GROUP_NULL) (void)mpi().group_free(&some);
    if (all != MPI_GROUP_NULL) (void)mpi().group_free(&all);
    if (code != MPI_SUCCESS) return tl::unexpected(mpi_error("MPI_Comm_create_group", code));
    const Status status = port->settle();
    if (!status.is_ok()) return tl::unexpected(status);
    return port;
  }

  void abandon() noexcept override {
    abandoned_ = true;
    process_state().failed = true;
  }

 private:
  static Result<MpiRequest> begun(std::string_view what, int code, MPI_Request value,
                                  MpiRequest request) {
    if (code != MPI_SUCCESS) return tl::unexpected(mpi_error(what, code));
    set_native(request, value);
    return request;
  }

  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
  std::uint32_t most_tag_ = 0;
  bool settled_ = false;  ///< set by whoever forms the port, before others use it
  bool abandoned_ = false;
};

class Module final : public MpiModule {
 public:
  Module() {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    if (mpi().get_library_version(text.data(), &length) != MPI_SUCCESS) return;
    const std::string_view words(text.data(), static_cast<std::size_t>(length));
    library_ = words.substr(0, words.find_first_of("\n,"));
  }

  std::string_view library() const noexcept override { return library_; }

  Result<MpiOpening> open() override {
    auto port = std::make_unique<Port>();
    MPI_Request request = MPI_REQUEST_NULL;
    if (const int code = mpi().comm_idup(MPI_COMM_WORLD, &port->communicator(), &request);
        code != MPI_SUCCESS) {
      return tl::unexpected(mpi_error("MPI_Comm_idup", code));
    }
    MpiOpening opening{.port = std::move(port)};
    set_native(opening.request, request);
    return opening;
  }

 private:
  std::string library_;
};

/// At the process's exit. MPI_Finalize waits for all ranks; after a failure that would be for ever,
/// and with a group still alive its lane may be inside MPI.
void finalise() {
  if (process_state().failed || process_state().ports > 0) return;
  int finalised = 0;
  if (mpi().finalized(&finalised) == MPI_SUCCESS && finalised == 0) (void)mpi().finalize();
}

Status start_mpi() {
  int running = 0;
  int given = MPI_THREAD_SINGLE;
  if (const int code = mpi().initialized(&running); code != MPI_SUCCESS) {
    return mpi_error("MPI_Initialized", code);
  }
  if (running != 0) {
    (void)mpi().query_thread(&given);
  } else {
    const int code = mpi().init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &given);
    if (code != MPI_SUCCESS) return mpi_error("MPI_Init_thread", code);
    (void)std::atexit(finalise);
  }
  if (given >= MPI_THREAD_MULTIPLE) return {};
  return Status::error(Code::kInvalidArgument, "wanted MPI_THREAD_MULTIPLE (",
                       static_cast<int>(MPI_THREAD_MULTIPLE),
                       ") because collectives run on threads of their own, MPI gives level ", given,
                       running != 0 ? "; the program that called MPI_Init must ask for it"
                                    : "; use an MPI that is built with threads");
}

Result<MpiModule*> make_module(std::string_view version) {
  if (version != gradpress::version()) {
    return fail(Code::kInvalidArgument, "the module is of version ", gradpress::version(),
                ", the library of ", version, "; install both from one build");
  }
  if (!calls()) return tl::unexpected(calls().error());
  static const Status started = start_mpi();
  if (!started.is_ok()) return tl::unexpected(started);
  static Module module;
  return &module;
}

}  // namespace

}  // namespace gradpress::comm

extern "C" __attribute__((visibility("default"))) void gradpress_mpi_module(
    std::string_view version, gradpress::Result<gradpress::comm::MpiModule*>& module) {
  module = gradpress::comm::make_module(version);
}
