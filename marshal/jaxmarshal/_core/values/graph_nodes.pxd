"""The objects of a graph in the order in which a walk meets them, each once."""

from cpython.object cimport PyObject

cdef class Nodes:
    cdef PyObject** items      # owned, each by a reference of its own
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity   # a power of two, or 0 at first
    cdef int* places           # hash table of twice that: number of an item + 1, or 0
    # Attributes that equal ones have to replace: (number of a node, name, value); or None.
    cdef list puts
    # The addresses of the first ones, where only those very objects will do; or None.
    cdef bytes expected

# Add an object. 0 if it is there already. Raises on exhausted memory.
cdef int add_node(Nodes nodes, PyObject* obj) except -1

# Are the first ones those that are expected?
cdef bint are_expected(Nodes nodes) noexcept

# How many are expected.
cdef Py_ssize_t expected_count(Nodes nodes) noexcept

# Let go of all of them.
cdef int forget_nodes(Nodes nodes) except -1
