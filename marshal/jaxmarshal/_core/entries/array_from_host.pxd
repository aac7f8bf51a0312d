"""Arrays of host data: the primitive `stage`, and functions of `jax.numpy` that come to it."""

from cpython.object cimport PyObject

# `make_array` as its callers see it; see `errors`.
ctypedef PyObject* (*make_array_function)(
    int, int, PyObject*, PyObject*, int, PyObject**, size_t
) noexcept

# What `stage` is called by on a tape: `bind` of the primitive, set by `bind.pyx`.
cdef object stage_function

# `reference(*args)`, whose one host argument `x` of this kind becomes an array, through what is
# recorded of staging such data. `by` is 0 for the primitive itself. Counts for the entry point; a
# new reference, or NULL with an error set.
cdef PyObject* make_array(
    int entry, int by, PyObject* reference, PyObject* x, int kind, PyObject** args, size_t nargsf
) except? NULL
