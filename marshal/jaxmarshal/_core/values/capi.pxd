"""What several modules take from CPython, and from headers about its containers, declared once."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF

cdef extern from *:
    bint PyDict_CheckExact(PyObject* obj) noexcept
    PyObject* PyDict_GetItemWithError(object mapping, object key) except? NULL
    bint PyDict_Next(
        object mapping, Py_ssize_t* position, PyObject** key, PyObject** value
    ) noexcept
    PyObject* PyErr_Occurred() noexcept
    bint PyList_CheckExact(PyObject* obj) noexcept
    bint PyLong_CheckExact(PyObject* obj) noexcept
    object PyObject_GenericGetDict(object obj, void* context)
    unsigned long PyThread_get_thread_ident() noexcept
    bint PyTuple_CheckExact(PyObject* obj) noexcept
    PyObject* PyTuple_GET_ITEM(PyObject* items, Py_ssize_t i) noexcept
    Py_ssize_t PyTuple_GET_SIZE(PyObject* items) noexcept
    bint PyUnicode_CHECK_INTERNED(PyObject* text) noexcept
    bint PyUnicode_CheckExact(PyObject* obj) noexcept
    void Py_LeaveRecursiveCall() noexcept

cdef extern from "jaxmarshal/compat.h":
    int jm_enter_recursive_call(const char* where) except -1

cdef extern from "jaxmarshal/containers.h":
    PyObject** jm_list_items(object items) noexcept
    PyObject** jm_tuple_items(object items) noexcept

# Have a place own another object. What it owned goes last, for that may run code.
cdef inline void replace_reference(PyObject** place, object value) noexcept:
    cdef PyObject* old = place[0]
    Py_INCREF(value)
    place[0] = <PyObject*>value
    Py_XDECREF(old)
