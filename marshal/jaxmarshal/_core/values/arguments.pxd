"""The argument table; see the header for ownership and failure."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t

from jaxmarshal._core.values.array_words cimport array_buffer
from jaxmarshal._core.values.capi cimport replace_reference
from jaxmarshal._core.values.kinds cimport JM_ARRAY, JM_NDARRAY, JM_OTHER, classify, kind_of_unknown
from jaxmarshal._core.values.live_objects cimport counters, jm_counters

cdef extern from "jaxmarshal/argtable.h":
    ctypedef struct jm_slot:
        PyObject* obj
        void* buffer
        PyObject* prefix
        PyObject* target
        PyObject* plan
        PyObject* ready
        int32_t number
        unsigned char kind
        unsigned char action
    ctypedef struct jm_table:
        jm_slot* slots
        Py_ssize_t count
    void jm_table_init(jm_table* table, jm_counters* counters) noexcept
    int jm_table_push(
        jm_table* table, PyObject* obj, int kind, void* buffer, PyObject* prefix
    ) except -1
    void jm_table_unresolve(jm_table* table) noexcept
    void jm_table_clear(jm_table* table) noexcept
    void jm_table_free(jm_table* table) noexcept

cdef extern from *:
    """
    #define JM_COUNT_BUFFER_READ(counters) JM_COUNT(counters, buffers_read, 1)
    """
    void JM_COUNT_BUFFER_READ(jm_counters* counters) noexcept

cdef extern from "numpy/arrayobject.h":
    void* PyArray_DATA(void* array) noexcept nogil

# Read the buffer pointer of an argument of the given kind and append it. The pointer says whether
# there was a buffer then; whoever looks into one reads it again, for Python code that runs
# meanwhile may delete an array. Raises on exhausted memory.
cdef inline int push_argument(
    jm_table* table, object obj, int kind, PyObject* prefix
) except -1:
    cdef void* buffer = NULL
    if kind == JM_ARRAY:
        buffer = array_buffer(obj)
        JM_COUNT_BUFFER_READ(&counters)
    elif kind == JM_NDARRAY:
        buffer = PyArray_DATA(<void*>obj)
        JM_COUNT_BUFFER_READ(&counters)
    return jm_table_push(table, <PyObject*>obj, kind, buffer, prefix)

# Put what is ready for the call, or its result, into the place of what was there.
cdef inline void set_ready(jm_slot* slot, object ready) noexcept:
    replace_reference(&slot.ready, ready)
