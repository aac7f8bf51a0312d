"""Pytrees: flatten into an argument table in one pass, remember the structure, rebuild.

list, tuple, dict, namedtuple and None are walked here. A tree with any other node goes through
JAX's registry as a whole, once: flatten functions of custom nodes are the user's code, and a call
of device_put runs them as often as the reference does. The order of leaves and of dict keys is that
of JAX's own registry.
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
    WHOLE_TREE   # n leaves; data: the treedef. The only step of its structure

ctypedef struct Step:
    Op op
    Py_ssize_t n
    PyObject* data           # owned, or NULL
    Py_ssize_t* positions    # DICT_NODE: owned heap block, where `match` found each key, or NULL

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

# What `flatten` returns for a tree that only JAX's registry can flatten; no `_stats.Reason`.
cdef enum:
    NEEDS_REGISTRY = 1000

# Append the leaves of `obj` to `table` and its nodes to `structure`. `prefix` is a tree prefix of
# `obj` (each leaf's slot then owns its part of it), or NULL for none. Returns 0, NEEDS_REGISTRY, or
# a `_stats.Reason` when the reference must handle this tree. Runs no code of the user's.
# Raises on exhausted memory or recursion.
cdef int flatten(object obj, PyObject* prefix, Structure* structure, jm_table* table) except -1

# The same through JAX's registry, for a tree without prefix and an empty `structure` and `table`.
# All leaves are appended, also those that are no arguments, for which a Reason is returned.
# Raises what flatten functions of custom nodes raise, and that is what the reference would raise.
cdef int flatten_by_registry(object obj, Structure* structure, jm_table* table) except -1

# Record the nodes of a treedef in an empty `structure`. 0 if one of them is of a kind that only JAX
# can build; the structure is then half recorded.
cdef bint record_treedef(object treedef, Structure* structure) except -1

# Build the tree. Its leaves are at `leaf` and every `stride` bytes from there; borrowed.
# Raises what node constructors raise.
cdef object rebuild(Structure* structure, PyObject** leaf, size_t stride)

# Append the leaves of `obj` to `table` if its nodes are those of `structure` from step `step[0]`
# on, where `leaves[0]` leaves of a run are still to come; both are advanced. Returns 1 on a match,
# 0 otherwise (the table then holds some of the leaves). Runs no code of the user's. Raises as
# `flatten` does.
cdef int match(
    object obj, Structure* structure, Py_ssize_t* step, Py_ssize_t* leaves, jm_table* table
) except -1

# The same for a structure that `flatten_by_registry` recorded: the treedefs have to be equal.
cdef int match_by_registry(object obj, Structure* structure, jm_table* table) except -1
