"""Exact type to kind. Specification of `classify`, the only place where a type is looked at."""

from cpython.object cimport PyObject, PyTypeObject
from jaxmarshal._core.values.live_objects cimport JM_COUNT, counters, jm_counters

cdef extern from "jaxmarshal/classify.h":
    ctypedef enum jm_kind:
        JM_OTHER
        JM_ARRAY
        JM_NDARRAY
        JM_NP_SCALAR
        JM_BOOL
        JM_INT
        JM_FLOAT
        JM_COMPLEX
        JM_TRACER
        JM_REF
        JM_KEY_ARRAY
        JM_TOKEN
        JM_LITERAL
        JM_NONE
        JM_LIST
        JM_TUPLE
        JM_DICT
        JM_KIND_COUNT
    ctypedef struct jm_type_table:
        int count
    int jm_kind_of_type(const jm_type_table* table, PyTypeObject* type) noexcept nogil
    int jm_type_table_set(jm_type_table* table, PyTypeObject* type, int kind) noexcept
    bint jm_kind_is_host(int kind) noexcept nogil
    bint jm_kind_is_argument(int kind) noexcept nogil

cdef extern from *:
    """
    #define JM_COUNT_CLASSIFIED(counters) JM_COUNT(counters, classified, 1)
    """
    void JM_COUNT_CLASSIFIED(jm_counters* counters) noexcept nogil
    PyTypeObject* Py_TYPE(PyObject* obj) noexcept nogil

# The table owns its types for the life of the process. Filled when the module is imported.
cdef jm_type_table types

# The kind of an object whose type is not in the table: JM_TRACER (and then its class is added) or
# JM_OTHER. Raises what `isinstance` raises.
cdef int kind_of_unknown(object obj) except -1

# The kind of one argument. Needs the GIL; cannot fail; borrows `obj`.
cdef inline int classify(PyObject* obj) noexcept:
    JM_COUNT_CLASSIFIED(&counters)
    return jm_kind_of_type(&types, Py_TYPE(obj))
