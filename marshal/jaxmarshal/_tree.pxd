"""Pytrees: flatten into an argument table in one pass, remember the structure, rebuild.

list, tuple, dict, namedtuple and None are walked here; any other node goes through JAX's registry
as one subtree. The order of leaves and of dict keys is that of JAX's own registry.
"""

from cpython.object cimport PyObject
from jaxmarshal._argtable cimport jm_table

cdef enum Op:
    LEAVES       # n leaves in a row
    NONE_NODE
    LIST_NODE    # n children
    TUPLE_NODE
    DICT_NODE    # n children; data: the keys in order, a list
    NAMED_NODE   # n children; data: the namedtuple type
    CUSTOM_NODE  # n leaves; data: the treedef of the subtree

ctypedef struct Step:
    Op op
    Py_ssize_t n
    PyObject* data    # owned, or NULL

cdef enum:
    INLINE_STEPS = 8

# The recorded structure of one tree: its nodes in preorder. `steps` is the inline array or a heap
# block; `free_structure` releases both and every reference, also when half recorded.
ctypedef struct Structure:
    Step* steps
    Py_ssize_t count
    Py_ssize_t capacity
    Step inline_steps[INLINE_STEPS]

cdef void init_structure(Structure* structure) noexcept
cdef void free_structure(Structure* structure) noexcept

# Give what `source` owns to `target`, an initialised and empty structure; `source` is empty then.
cdef void move_structure(Structure* target, Structure* source) noexcept

# Append the leaves of `obj` to `table` and its nodes to `structure`. `prefix` is a tree prefix of
# `obj` (each leaf's slot then owns its part of it), or NULL for none. Returns 0, or a
# `_stats.Reason` when the reference must handle this tree.
# Raises on exhausted memory and what a custom node's flatten function raises.
cdef int flatten(object obj, PyObject* prefix, Structure* structure, jm_table* table) except -1

# Build the tree from each slot's `ready`. Raises what node constructors raise.
cdef object rebuild(Structure* structure, jm_table* table)

# Append the leaves of `obj` to `table` if its nodes are those of `structure` from step `step[0]` on,
# where `leaves[0]` leaves of a run are still to come; both are advanced. Returns 1 on a match, 0
# otherwise (the table then holds some of the leaves). Raises as `flatten` does.
cdef int match(
    object obj, Structure* structure, Py_ssize_t* step, Py_ssize_t* leaves, jm_table* table
) except -1
