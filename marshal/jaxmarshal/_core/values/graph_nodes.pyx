"""The objects of a graph, each once."""

from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uintptr_t
from libc.string cimport memcmp, memset

cdef enum:
    FEWEST = 64    # there is room for, at first


cdef class Nodes:
    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            Py_DECREF(<object>self.items[i])
        PyMem_Free(self.items)
        PyMem_Free(self.places)


cdef inline int* _place(Nodes nodes, PyObject* obj) noexcept:
    """Where the object's number is, or would be."""
    cdef uintptr_t mask = 2 * nodes.capacity - 1
    cdef uintptr_t at = (<uintptr_t>obj >> 4) ^ (<uintptr_t>obj >> 14)
    while True:
        at &= mask
        if nodes.places[at] == 0 or nodes.items[nodes.places[at] - 1] == obj:
            return &nodes.places[at]
        at += 1


cdef int _grow(Nodes nodes) except -1:
    cdef Py_ssize_t i, capacity = max(2 * nodes.capacity, FEWEST)
    cdef PyObject** items = <PyObject**>PyMem_Realloc(nodes.items, capacity * sizeof(PyObject*))
    cdef int* places
    if items == NULL:
        raise MemoryError()
    nodes.items = items
    places = <int*>PyMem_Calloc(2 * capacity, sizeof(int))
    if places == NULL:
        raise MemoryError()
    PyMem_Free(nodes.places)
    nodes.places = places
    nodes.capacity = capacity
    for i in range(nodes.count):
        _place(nodes, items[i])[0] = i + 1
    return 0


cdef int add_node(Nodes nodes, PyObject* obj) except -1:
    cdef int* place
    if nodes.count == nodes.capacity:
        _grow(nodes)
    place = _place(nodes, obj)
    if place[0]:
        return 0
    Py_INCREF(<object>obj)
    nodes.items[nodes.count] = obj
    nodes.count += 1
    place[0] = nodes.count
    return 1


cdef Py_ssize_t expected_count(Nodes nodes) noexcept:
    return 0 if nodes.expected is None else len(nodes.expected) // sizeof(PyObject*)


cdef bint are_expected(Nodes nodes) noexcept:
    cdef Py_ssize_t n = expected_count(nodes)
    if n == 0:
        return True
    return nodes.count >= n and memcmp(
        nodes.items, <char*>nodes.expected, n * sizeof(PyObject*)
    ) == 0


cdef int forget_nodes(Nodes nodes) except -1:
    cdef Py_ssize_t i, count = nodes.count
    nodes.puts = None
    if not count:
        return 0
    memset(nodes.places, 0, 2 * nodes.capacity * sizeof(int))
    nodes.count = 0
    for i in range(count):
        Py_DECREF(<object>nodes.items[i])
    return 0
