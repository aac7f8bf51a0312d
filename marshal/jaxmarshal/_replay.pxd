"""Public functions outside of `jit`: the steps they took the last time, without the rest."""

from cpython.object cimport PyObject

# An argument of which a function makes an array before it decides anything by it.
cdef class Number:
    cdef readonly Py_ssize_t at    # by position
    cdef readonly str name
    cdef readonly object convert   # makes of it what the function makes an array of
    cdef readonly bint only        # are calls without a number left to the reference?

# One function of the reference.
cdef class Row:
    cdef int entry           # the number of its entry point
    cdef int named           # and that of the function, among those that share it; 0 for none
    cdef object reference    # what is called, and part of the key
    cdef object call         # by which it is called
    cdef int missed          # calls in a row that nothing fitted
    cdef int skip            # so many calls go to the reference unseen
    cdef str left_with       # the name of an argument with which calls are the reference's; or None
    cdef bint with_functions    # are functions among its arguments, which it traces once?
    cdef Number number       # of a function that makes an array of one before it looks at it
    cdef list numbers        # the last ones that came in

# A call of the function; a new reference, or NULL with an error set.
cdef PyObject* call_row(
    Row row, PyObject** args, size_t nargsf, PyObject* names
) except? NULL

# `call_row` as its callers see it; see `_errors`.
ctypedef PyObject* (*row_function)(Row, PyObject**, size_t, PyObject*) noexcept
