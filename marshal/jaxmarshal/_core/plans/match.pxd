"""Taking the leaves of objects that should have a recorded structure, without flattening them."""

from cpython.object cimport PyObject
from jaxmarshal._core.plans.intake cimport jm_intake
from jaxmarshal._core.values.static_values cimport Asked
from jaxmarshal._core.values.trees cimport Step

# A walk through objects that should have a recorded structure, taking their leaves on the way.
ctypedef struct Walk:
    jm_intake* intake
    Step* step           # the next one
    Step* end            # after the last one
    Py_ssize_t leaves    # of a run of leaves, those still to come
    # What is kept for all walks of one call. `flattened` is a list of (custom node, its leaves and
    # treedef, or None where flattening it failed).
    Asked* asked
    Py_ssize_t taken     # how many of these this walk has passed
    PyObject* nodes      # borrowed: a `Nodes`, of the graphs that were met; NULL for none

# Takes the leaves of a graph of live objects, such as a module that is shared by others, if it is
# what `graph`, the data of a GRAPH_NODE, says; returns and raises as `match_object` does. The front
# that makes such steps sets it.
ctypedef int (*graph_function)(PyObject* obj, PyObject* graph, Walk* walk) except -1
cdef graph_function match_graph

# Take the leaves of `obj` if its nodes are those of the walk's next steps. Returns 1 on a match;
# 0 otherwise, or when the intake refused a leaf. Runs code of the user's for custom nodes only.
# Raises as `flatten` does, and what the intake raises.
cdef int match_object(PyObject* obj, Walk* walk) except -1

# The same for `n` objects in a row, which the caller keeps alive and in place.
cdef int match_array(PyObject** items, Py_ssize_t n, Walk* walk) except -1
