"""A method in C: called without a bound method or a tuple of its arguments."""

from cpython.object cimport PyObject, PyTypeObject

cdef extern from "jaxmarshal/vectorcall.h":
    ctypedef PyObject* (*vectorcallfunc)(PyObject*, PyObject**, size_t, PyObject*) noexcept
    void jm_use_vectorcall(PyTypeObject* type, Py_ssize_t offset, bint is_method) noexcept
    PyObject* PyObject_Vectorcall(
        PyObject* function, PyObject** args, size_t nargsf, PyObject* names
    ) noexcept
    Py_ssize_t PyVectorcall_NARGS(size_t nargsf) noexcept

# Stands in for one of the reference's functions, or in a class for one of its methods; then
# `implementation` gets the object itself as its first argument.
cdef class Method:
    cdef vectorcallfunc implementation
    cdef dict __dict__
    cdef object __weakref__

cdef Method make_method(vectorcallfunc implementation, object reference)
