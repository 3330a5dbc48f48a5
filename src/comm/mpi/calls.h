// MPI's functions as the module calls them: looked up in the module's own MPI, whatever other MPI
// the process has loaded.
//
// A plain call would be bound by name to the first library of the process that has the name.
// Where libgloo is linked with Open MPI, that would be Open MPI's function, called with MPICH's
// handles. decisions/0014 has the ways not taken.
#pragma once

#include <dlfcn.h>
#include <gradpress/status.h>
#include <mpi.h>

#include <string_view>

namespace gradpress::comm {

// member, function
#define GRADPRESS_MPI_CALLS(X)                    \
  X(cancel, MPI_Cancel)                           \
  X(comm_create_group, MPI_Comm_create_group)     \
  X(comm_free, MPI_Comm_free)                     \
  X(comm_get_attr, MPI_Comm_get_attr)             \
  X(comm_group, MPI_Comm_group)                   \
  X(comm_idup, MPI_Comm_idup)                     \
  X(comm_rank, MPI_Comm_rank)                     \
  X(comm_set_errhandler, MPI_Comm_set_errhandler) \
  X(comm_size, MPI_Comm_size)                     \
  X(error_string, MPI_Error_string)               \
  X(finalize, MPI_Finalize)                       \
  X(finalized, MPI_Finalized)                     \
  X(get_count, MPI_Get_count)                     \
  X(get_library_version, MPI_Get_library_version) \
  X(group_free, MPI_Group_free)                   \
  X(group_incl, MPI_Group_incl)                   \
  X(ibcast, MPI_Ibcast)                           \
  X(init_thread, MPI_Init_thread)                 \
  X(initialized, MPI_Initialized)                 \
  X(irecv, MPI_Irecv)                             \
  X(isend, MPI_Isend)                             \
  X(query_thread, MPI_Query_thread)               \
  X(test, MPI_Test)                               \
  X(test_cancelled, MPI_Test_cancelled)

struct MpiCalls {
#define GRADPRESS_MPI_MEMBER(member, function) decltype(&::function) member = nullptr;
  GRADPRESS_MPI_CALLS(GRADPRESS_MPI_MEMBER)
#undef GRADPRESS_MPI_MEMBER
};

/// Looks all of them up in the module that this is compiled into, and in what that is linked with.
/// Errors: kInvalidArgument when one is missing.
inline Result<MpiCalls> find_calls() {
  // Any object of the module tells its file.
  static const char kOwn = 0;
  Dl_info info{};
  void* own = nullptr;
  if (dladdr(&kOwn, &info) != 0) own = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (own == nullptr) {
    return fail(Code::kInternal, "the module does not find its own file");
  }
  MpiCalls calls;
  std::string_view missing;
  const auto look_up = [&](const char* name) {
    void* const found = dlsym(own, name);
    if (found == nullptr) missing = name;
    return found;
  };
#define GRADPRESS_MPI_LOOK_UP(member, function) \
  calls.member = reinterpret_cast<decltype(&::function)>(look_up(#function));
  GRADPRESS_MPI_CALLS(GRADPRESS_MPI_LOOK_UP)
#undef GRADPRESS_MPI_LOOK_UP
  // The core's handle keeps the module open.
  (void)dlclose(own);
  if (missing.empty()) return calls;
  return fail(Code::kInvalidArgument, "the MPI library has no ", missing,
              "; wanted MPI 3.0 or newer");
}

}  // namespace gradpress::comm
