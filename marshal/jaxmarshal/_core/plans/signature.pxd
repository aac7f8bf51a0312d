"""A number for what arguments are: calls that one plan fits have the same.

It finds the plan of a call among many; whether the plan fits is decided by its guard alone. So it
reads only what equal guards have in common (the classes and sizes of containers, the avals of
arrays by value), at no more than so many leaves, and it runs no code of users: of a custom node and
of most objects it knows the class alone.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

cdef enum:
    MOST_LEAVES = 16    # that are looked at

# The number so far and one more.
cdef inline uint64_t add_number(uint64_t number, uint64_t more) noexcept:
    number = (number ^ more) * <uint64_t>0x9E3779B97F4A7C15
    return number ^ (number >> 32)

# That of a tree, of which at most `leaves` leaves count. Raises what reading an aval raises.
cdef uint64_t number_of_tree(PyObject* obj, Py_ssize_t leaves, int depth=*) except? 0

# The same for an array of trees: each has its share of the leaves. Where there are more trees than
# leaves, the first and the last ones count.
cdef uint64_t number_of_trees(
    PyObject** items, Py_ssize_t n, Py_ssize_t leaves, int depth=*
) except? 0

# That of a static argument.
cdef uint64_t number_of_static(PyObject* obj, int depth=*) except? 0
