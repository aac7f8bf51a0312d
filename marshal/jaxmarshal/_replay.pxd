"""Public functions outside of `jit`: the steps they took the last time, without the rest."""

from cpython.object cimport PyObject

# One function of the reference.
cdef class Row:
    cdef int entry           # the number of its entry point
    cdef object reference    # what is called, and part of the key
    cdef object call         # by which it is called
    cdef int missed          # calls in a row that nothing fitted
    cdef int skip            # so many calls go to the reference unseen
    # Of a function that makes an array of a number before it looks at it: the number's place, its
    # name, and the type of numpy's by which that is done; or None.
    cdef Py_ssize_t number_at
    cdef str number_name
    cdef object number_type
    cdef list numbers        # the last ones

# A call of the function; a new reference, or NULL with an error set.
cdef PyObject* call_row(
    Row row, PyObject** args, size_t nargsf, PyObject* names
) except? NULL

# `call_row` as its callers see it; see `_errors`.
ctypedef PyObject* (*row_function)(Row, PyObject**, size_t, PyObject*) noexcept
