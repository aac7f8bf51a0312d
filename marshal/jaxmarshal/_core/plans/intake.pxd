"""The guard of one argument and the taking of arguments; see the header."""

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int32_t

from jaxmarshal._core.values.arguments cimport jm_table
from jaxmarshal._core.values.array_words cimport jm_array_layout

cdef extern from "jaxmarshal/guard.h":
    ctypedef struct jm_guard:
        PyObject* aval
        PyObject* where
        PyObject* impl
        int32_t input
        unsigned char kind
        unsigned char committed
        unsigned char donated
    ctypedef struct jm_intake:
        const jm_array_layout* layout
        PyTypeObject* array_type
        jm_guard* guard
        jm_guard* end
        PyObject* tuple
        PyObject** inputs
        jm_table* table
        void* plan
        PyObject* found
        int reason
        int (*look)(jm_intake* intake, PyObject* obj) noexcept
    Py_ssize_t jm_take_words(
        jm_intake* intake, PyObject** items, Py_ssize_t n
    ) noexcept
    int jm_take(jm_intake* intake, PyObject* obj) except -1
