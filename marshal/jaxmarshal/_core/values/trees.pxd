"""Pytrees: flatten into an argument table in one pass, remember the structure, rebuild.

list, tuple, dict, namedtuple and None are walked here; other nodes go through JAX's registry: each
by itself where only its structure and leaves are wanted (`by_node`), or else the tree as a whole,
once, because flatten functions of custom nodes are the user's code and a call of device_put runs
them as often as the reference does. The order of leaves and of dict keys is that of the registry.
"""

from cpython.object cimport PyObject
from jaxmarshal._core.values.arguments cimport jm_table

cdef enum Op:
    LEAVES       # n leaves in a row
    NONE_NODE
    LIST_NODE    # n children
    TUPLE_NODE
    DICT_NODE    # n children; data: the keys in order, a list
    NAMED_NODE   # n children; data: the namedtuple type
    REGISTRY_NODE    # n leaves; data: the treedef of a tree that JAX's registry flattened
    # These four are in trees of which some leaves are static, see `filtered`.
    STATIC_LEAF      # data: a StaticArgument
    FIXED_NODE       # data: the one object that it can be
    FIELDS_NODE      # n children; data: a FieldsNode
    SPREAD_NODE      # n leaves, each a step; data: the treedef, as of a REGISTRY_NODE
    GRAPH_NODE   # data: what a graph of live objects has to be, see `match.match_graph`

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
    bint by_node       # `flatten_tree` sends nodes that are not walked here through JAX's registry
    Step inline_steps[INLINE_STEPS]

cdef void init_structure(Structure* structure, bint by_node=*) noexcept
cdef void free_structure(Structure* structure) noexcept

# Give what `source` owns to `target`, an initialised and empty structure; `source` is empty then.
cdef void move_structure(Structure* target, Structure* source) noexcept

# Have `target`, which is empty, be like `source`, but for what `match` has found out.
cdef int copy_structure(Structure* target, Structure* source) except -1

# What `flatten_tree` returns for a tree that only JAX's registry can flatten; no `counting.Reason`.
cdef enum:
    NEEDS_REGISTRY = 1000

# Append the leaves of `obj` to `table` and its nodes to `structure`. `prefix` is a tree prefix of
# `obj` (each leaf's slot then owns its part of it), or NULL for none. Returns 0, NEEDS_REGISTRY, or
# a `counting.Reason` when the reference must handle this tree. Runs no code of the user's.
# Raises on exhausted memory or recursion.
cdef int flatten_tree(object obj, PyObject* prefix, Structure* structure, jm_table* table) except -1
# See `errors`.
ctypedef int (*flatten_tree_function)(object, PyObject*, Structure*, jm_table*) noexcept

# The keys in JAX's order, or None when they are not all str or all int: JAX's registry alone
# flattens such a dict.
cdef list sorted_keys(dict mapping)

# The same as `flatten_tree` through JAX's registry, for a tree or a part of one without prefix.
# All leaves are appended, also those that are no arguments, for which a Reason is returned.
# Raises what flatten functions of custom nodes raise, and that is what the reference would raise.
cdef int flatten_by_registry(object obj, Structure* structure, jm_table* table) except -1

# Append a step, which takes a reference of its own to `data`; or one more leaf.
cdef int add_step(Structure* structure, Op op, Py_ssize_t n, PyObject* data) except -1
cdef int add_leaf(Structure* structure) except -1

# Append a node of a treedef, given its class and data, whose `n` children follow. 0 if it is of a
# kind that only JAX can build.
cdef bint add_container(object node, Py_ssize_t n, Structure* structure) except -1

# Record the nodes of a treedef in an empty `structure`. 0 if one of them is of a kind that only JAX
# can build; the structure is then half recorded.
cdef bint record_treedef(object treedef, Structure* structure) except -1

# Build the tree. Its leaves are at `leaf` and every `stride` bytes from there; borrowed.
# Raises what node constructors raise.
cdef object rebuild_tree(Structure* structure, PyObject** leaf, size_t stride)
