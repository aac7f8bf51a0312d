"""Public functions outside of `jit`: the steps they took the last time, without the rest."""

from cpython.object cimport PyObject

from jaxmarshal._core.context.bypassed cimport Attributes
from jaxmarshal._core.replay.key cimport Converting, HostData

# An argument that is looked for among those of a call: a number.
cdef class Number:
    cdef readonly Py_ssize_t at    # by position
    cdef readonly str name
    # Makes of it what the function makes an array of before it decides anything by it; or None
    # where the function decides by it, or hands it on.
    cdef readonly object convert
    cdef readonly bint only        # are calls without a number left to the reference?

# One function of the reference.
cdef class Row:
    cdef int entry           # the number of its entry point
    cdef int named           # and that of the function, among those that share it; 0 for none
    cdef object reference    # what is called
    cdef object part         # of the key: which function it is
    cdef object call         # by which it is called
    cdef int missed          # calls in a row that nothing fitted, and of which nothing was kept
    cdef int recorded        # calls of which something was kept, since one was replayed
    cdef unsigned int turn   # of a series of numbers that look like chance
    cdef int skip            # so many calls go to the reference unseen
    cdef str left_with       # the name of an argument with which calls are the reference's; or None
    cdef bint with_functions    # are functions among its arguments, which it traces once?
    cdef bint with_states    # may it depend on the states of `jax.random`?
    cdef Converting numbers_to  # of a call that has arguments by position; others: any
    cdef HostData host          # may the first be host data, whose elements it only hands on?
    cdef bint failed            # did the steps of the call that is made fail?
    cdef Number number       # that counts, or None
    cdef bint with_index     # does it take an array, and an index of which one int may differ?
    cdef bint with_value     # and something that it makes an array of at once?
    cdef Attributes attributes    # of a function that is an object, or None
    cdef bint late           # is it of a module that JAX imports when a program asks for it?
    cdef list numbers        # the last ones that came in

# A call of the function; a new reference, or NULL with an error set.
cdef PyObject* call_row(
    Row row, PyObject** args, size_t nargsf, PyObject* names
) except? NULL

# Is nothing replaced that converts a number or places it? The function would not call it.
cdef bint is_converted_as_before() except -1

# `call_row` as its callers see it; see `errors`.
ctypedef PyObject* (*call_row_function)(Row, PyObject**, size_t, PyObject*) noexcept
