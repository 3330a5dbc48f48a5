// Which lock guards what, in words that clang checks (-Wthread-safety); other compilers see
// nothing.
#pragma once

#if defined(__clang__)
#define GRADPRESS_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define GRADPRESS_THREAD_ATTRIBUTE(x)
#endif

#define GRADPRESS_CAPABILITY(name) GRADPRESS_THREAD_ATTRIBUTE(capability(name))
#define GRADPRESS_SCOPED_CAPABILITY GRADPRESS_THREAD_ATTRIBUTE(scoped_lockable)
/// A field that is read and written only with the lock held.
#define GRADPRESS_GUARDED_BY(lock) GRADPRESS_THREAD_ATTRIBUTE(guarded_by(lock))
/// A function that is called with the lock held, or without it.
#define GRADPRESS_REQUIRES(...) GRADPRESS_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define GRADPRESS_EXCLUDES(...) GRADPRESS_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define GRADPRESS_ACQUIRE(...) GRADPRESS_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define GRADPRESS_RELEASE(...) GRADPRESS_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
