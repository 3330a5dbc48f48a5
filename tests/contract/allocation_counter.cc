#include "contract/allocation_counter.h"

#include <cstdlib>
#include <new>

namespace {
// Plain, not atomic: the test has one thread.
std::size_t count = 0;
}  // namespace

namespace gradpress::test {
std::size_t allocations() { return count; }
}  // namespace gradpress::test

// The library calls these two ways: C functions, which the linker redirects here (--wrap), and
// operator new.
extern "C" {
void* __real_malloc(std::size_t bytes);
void* __real_calloc(std::size_t number, std::size_t bytes);
void* __real_realloc(void* memory, std::size_t bytes);
void* __real_aligned_alloc(std::size_t alignment, std::size_t bytes);
int __real_posix_memalign(void** memory, std::size_t alignment, std::size_t bytes);
void* __wrap_malloc(std::size_t bytes) {
  ++count;
  return __real_malloc(bytes);
}
void* __wrap_calloc(std::size_t number, std::size_t bytes) {
  ++count;
  return __real_calloc(number, bytes);
}
void* __wrap_realloc(void* memory, std::size_t bytes) {
  ++count;
  return __real_realloc(memory, bytes);
}
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t bytes) {
  ++count;
  return __real_aligned_alloc(alignment, bytes);
}
int __wrap_posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  ++count;
  return __real_posix_memalign(memory, alignment, bytes);
}
}

void* operator new(std::size_t bytes) {
  ++count;
  if (void* memory = __real_malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
