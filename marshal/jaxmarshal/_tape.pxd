"""What jitted functions were called, with what, while a function of the reference ran.

Each call is a step. Its arguments are the array that the whole call is about, results of earlier
steps, and host constants. An array of which it is not known where it came from breaks the tape.
"""

from cpython.object cimport PyObject

cdef class Tape:
    cdef unsigned long thread
    cdef list steps      # (function, arguments); arrays among these are Value objects
    cdef dict values     # id of an array -> its number
    cdef list alive      # the arrays in that order, so that no id is used twice
    cdef bint broken

# The tape that is being written, or None.
cdef Tape current

# Note a call with positional arguments and what it returned.
cdef int note(object function, PyObject** args, Py_ssize_t n, PyObject* result) except -1

# An array among the arguments of a step: the one that the call is about, or the result of a step.
cdef class Value:
    cdef Py_ssize_t number

# Begin to write a tape about an array, or about none. `current` has to be None.
cdef Tape start_tape(object source)

# On a tape about no array: is an object what this function returned for this argument alone?
cdef bint is_result_of(Tape tape, object result, object function, object arg) except -1

# Stop writing.
cdef void stop_tape() noexcept
