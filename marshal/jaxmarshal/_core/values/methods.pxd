"""A method in C: called without a bound method or a tuple of its arguments."""

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport uint64_t

cdef extern from "jaxmarshal/vectorcall.h":
    ctypedef PyObject* (*vectorcallfunc)(PyObject*, PyObject**, size_t, PyObject*) noexcept
    void jm_use_vectorcall(PyTypeObject* type, Py_ssize_t offset, bint is_method) noexcept
    PyObject* PyObject_Vectorcall(
        PyObject* function, PyObject** args, size_t nargsf, PyObject* names
    ) noexcept
    Py_ssize_t PyVectorcall_NARGS(size_t nargsf) noexcept

# The arguments by name of such a call, which come after those by position.
cdef dict named_arguments(PyObject** args, PyObject* names)

# Stands in for one of the reference's functions, or in a class for one of its methods; then
# `implementation` gets the object itself as its first argument.
cdef class Method:
    cdef vectorcallfunc implementation
    cdef object reference        # what it stands in for
    cdef object inner            # of `in_place_of`: the accelerated function
    cdef str home                # its public name in jaxmarshal, or None
    # The reference's signature, so that a wrong call is the reference's to refuse.
    cdef dict places             # name -> its place among them, those given by name only last
    cdef Py_ssize_t positional   # how many may be given by position
    cdef Py_ssize_t by_position  # how many may not be given by name
    cdef uint64_t required       # a bit for the place of each that has no default
    cdef bint takes_more         # *args
    cdef bint takes_others       # **kwargs
    cdef dict shown              # attributes that a function keeps elsewhere than in its dict
    cdef dict __dict__
    cdef object __weakref__

cdef Method make_method(vectorcallfunc implementation, object reference)
