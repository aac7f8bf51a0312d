/* The one place that depends on the CPython version, the C library or the compiler. */
#ifndef JAXMARSHAL_COMPAT_H
#define JAXMARSHAL_COMPAT_H

#include <Python.h>
#include <stddef.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030B0000
#error "jaxmarshal needs Python 3.11 or later"
#endif
#ifdef Py_GIL_DISABLED
#error "jaxmarshal relies on the GIL for the consistency of its caches: no free-threaded Python"
#endif

#if defined(__GNUC__) || defined(__clang__)
#define JM_LIKELY(x) __builtin_expect(!!(x), 1)
#define JM_UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define JM_LIKELY(x) (x)
#define JM_UNLIKELY(x) (x)
#endif

#if defined(__GLIBC__) || defined(__linux__)
#include <malloc.h>
#define JM_HAVE_ALLOCATION_SIZE 1
#elif defined(__APPLE__)
#include <malloc/malloc.h>
#define JM_HAVE_ALLOCATION_SIZE 1
#else
#define JM_HAVE_ALLOCATION_SIZE 0
#endif

/* Py_EnterRecursiveCall promises no more than a non-zero value on failure, and which one differs
   between versions. 0, or -1 with RecursionError set. */
static inline int jm_enter_recursive_call(const char *where) {
    return Py_EnterRecursiveCall(where) ? -1 : 0;
}

/* Bytes usable from `p`, the start of an allocation of the C library; 0 where nothing tells.
   Must not be called for a pointer that malloc did not return. */
static inline size_t jm_allocation_size(void *p) {
#if defined(__APPLE__)
    return malloc_size(p);
#elif JM_HAVE_ALLOCATION_SIZE
    return malloc_usable_size(p);
#else
    (void)p;
    return 0;
#endif
}

#endif
