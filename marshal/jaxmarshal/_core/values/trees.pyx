"""Flattening and rebuilding of pytrees without a treedef."""

from cpython.dict cimport PyDict_Keys, PyDict_SetItem, PyDict_Size
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from jaxmarshal._core.values.arguments cimport jm_table, push_argument
from jaxmarshal._core.values.capi cimport (
    PyDict_GetItemWithError, Py_LeaveRecursiveCall, jm_enter_recursive_call
)
from jaxmarshal._core.values.fields cimport FieldsNode, make_instance
from jaxmarshal._core.values.kinds cimport (
    JM_DICT, JM_LIST, JM_NONE, JM_OTHER, JM_TUPLE, Py_TYPE, classify, jm_kind_is_argument,
    jm_kind_of_type, kind_of_unknown, types
)
from jaxmarshal._core.values.live_objects cimport counters, jm_counters
from jaxmarshal._core.values.static_values cimport StaticArgument
from jaxmarshal._core.values.targets cimport is_reached_by_function, is_target
from jaxmarshal._reports.counting cimport HIT, TREE, call_aside, reason_of_kind

from jaxmarshal._jax import private

cdef extern from *:
    """
    #define JM_COUNT_HEAP(counters, by) JM_COUNT(counters, live_heap, by)
    """
    void JM_COUNT_HEAP(jm_counters* counters, int by) noexcept
    bint PyObject_HasAttrString(object obj, const char* name) noexcept
    int PyList_Sort(object items) except -1
    bint PyUnicode_CheckExact(object obj) noexcept
    bint PyLong_CheckExact(object obj) noexcept
    int PyUnicode_Compare(object a, object b) except? -1
    bint PyTuple_Check(object obj) noexcept

cdef object _flatten_with_registry = (
    private.pytree_registry.flatten if private.HAVE_PYTREE else None
)
cdef dict _node_types = private.pytree_node_types if private.HAVE_PYTREE else {}


cdef void init_structure(Structure* structure, bint by_node=False) noexcept:
    structure.by_node = by_node
    structure.steps = structure.inline_steps
    structure.count = 0
    structure.capacity = INLINE_STEPS


cdef void free_structure(Structure* structure) noexcept:
    cdef Py_ssize_t i
    for i in range(structure.count):
        Py_XDECREF(structure.steps[i].data)
        if structure.steps[i].positions != NULL:
            free(structure.steps[i].positions)
            JM_COUNT_HEAP(&counters, -1)
    if structure.steps != structure.inline_steps:
        free(structure.steps)
        JM_COUNT_HEAP(&counters, -1)
    structure.steps = structure.inline_steps
    structure.count = 0


cdef void move_structure(Structure* target, Structure* source) noexcept:
    target[0] = source[0]
    if source.steps == source.inline_steps:
        target.steps = target.inline_steps
    init_structure(source)


cdef int _grow(Structure* structure) except -1:
    cdef bint inlined = structure.steps == structure.inline_steps
    cdef Py_ssize_t capacity = structure.capacity * 4
    cdef Step* steps = <Step*>realloc(
        NULL if inlined else structure.steps, capacity * sizeof(Step)
    )
    if steps == NULL:
        raise MemoryError()
    if inlined:
        memcpy(steps, structure.inline_steps, structure.count * sizeof(Step))
        JM_COUNT_HEAP(&counters, 1)
    structure.steps = steps
    structure.capacity = capacity
    return 0


cdef int add_step(Structure* structure, Op op, Py_ssize_t n, PyObject* data) except -1:
    cdef Step* step
    if structure.count == structure.capacity:
        _grow(structure)
    step = &structure.steps[structure.count]
    step.op = op
    step.n = n
    step.data = data
    step.positions = NULL
    if data != NULL:
        Py_INCREF(<object>data)
    structure.count += 1
    return 0


cdef int copy_structure(Structure* target, Structure* source) except -1:
    cdef Py_ssize_t i
    for i in range(source.count):
        add_step(target, source.steps[i].op, source.steps[i].n, source.steps[i].data)
    return 0


cdef int add_leaf(Structure* structure) except -1:
    cdef Step* last
    if structure.count:
        last = &structure.steps[structure.count - 1]
        if last.op == LEAVES:
            last.n += 1
            return 0
    return add_step(structure, LEAVES, 1, NULL)


cdef inline int _prefix_kind(PyObject* prefix) noexcept:
    """The kind of a part of a prefix tree; `classify`, which counts, is for arguments."""
    return jm_kind_of_type(&types, Py_TYPE(prefix))


cdef inline bint _is_prefix_leaf(PyObject* prefix) noexcept:
    """Does this part of a prefix tree stand for everything below it? None does, as in JAX."""
    cdef int kind
    if prefix == NULL:
        return True
    kind = _prefix_kind(prefix)
    if kind == JM_NONE:
        return True
    return not (kind >= JM_LIST or PyTuple_Check(<object>prefix))


cdef inline bint _stands_for_nothing(PyObject* prefix) noexcept:
    """May this part of a prefix tree stand for no leaves at all? Then nobody looks at it again.

    What is no plain target may be a node of JAX's registry, of which the reference knows the error.
    """
    return (
        prefix == NULL or _prefix_kind(prefix) == JM_NONE or is_target(<object>prefix)
        or is_reached_by_function(<object>prefix)
    )


cdef inline PyObject* _child(PyObject* prefix, bint broadcast, Py_ssize_t i, bint is_list) noexcept:
    if broadcast:
        return prefix
    return <PyObject*>(
        PyList_GET_ITEM(<object>prefix, i) if is_list else PyTuple_GET_ITEM(<object>prefix, i)
    )


cdef inline object _hold(PyObject* prefix):
    """A reference of our own: another thread may change the prefix tree."""
    return None if prefix == NULL else <object>prefix


cdef list sorted_keys(dict mapping):
    cdef Py_ssize_t i
    cdef bint text = False, number = False, sort = False
    cdef list keys = PyDict_Keys(mapping)
    for i in range(PyList_GET_SIZE(keys)):
        item = <object>PyList_GET_ITEM(keys, i)
        if PyUnicode_CheckExact(item):
            text = True
            if i and not number and not sort:
                sort = PyUnicode_Compare(<object>PyList_GET_ITEM(keys, i - 1), item) > 0
        elif PyLong_CheckExact(item):
            number = sort = True
        else:
            return None
        if text and number:
            return None
    if sort:
        PyList_Sort(keys)
    return keys


cdef int _flatten_list(
    list items, PyObject* prefix, Structure* structure, jm_table* table
) except -1:
    cdef Py_ssize_t i, n = PyList_GET_SIZE(items)
    cdef bint broadcast = _is_prefix_leaf(prefix)
    cdef int reason
    cdef object held = _hold(prefix)
    if not broadcast and (
        _prefix_kind(prefix) != JM_LIST or PyList_GET_SIZE(<object>prefix) != n
    ):
        return TREE
    if n == 0 and broadcast and not _stands_for_nothing(prefix):
        return TREE
    add_step(structure, LIST_NODE, n, NULL)
    for i in range(n):
        # Another thread may have changed either list.
        if PyList_GET_SIZE(items) != n or not (broadcast or PyList_GET_SIZE(held) == n):
            return TREE
        reason = flatten_tree(
            <object>PyList_GET_ITEM(items, i), _child(prefix, broadcast, i, True), structure, table
        )
        if reason:
            return reason
    return 0


cdef int _flatten_tuple(
    object items, PyObject* prefix, Structure* structure, jm_table* table, Op op, PyObject* data
) except -1:
    cdef Py_ssize_t i, n = PyTuple_GET_SIZE(items)
    cdef bint broadcast = _is_prefix_leaf(prefix)
    cdef int reason
    cdef object _held = _hold(prefix)
    if not broadcast and (
        type(<object>prefix) is not type(items) or PyTuple_GET_SIZE(<object>prefix) != n
    ):
        return TREE
    if n == 0 and broadcast and not _stands_for_nothing(prefix):
        return TREE
    add_step(structure, op, n, data)
    for i in range(n):
        reason = flatten_tree(
            <object>PyTuple_GET_ITEM(items, i), _child(prefix, broadcast, i, False), structure,
            table
        )
        if reason:
            return reason
    return 0


cdef int _flatten_dict(
    dict mapping, PyObject* prefix, Structure* structure, jm_table* table
) except -1:
    cdef Py_ssize_t i
    cdef PyObject* value
    cdef PyObject* part = prefix
    cdef bint broadcast = _is_prefix_leaf(prefix)
    cdef int reason
    cdef object _held = _hold(prefix)
    cdef list keys = sorted_keys(mapping)
    if keys is None:
        return NEEDS_REGISTRY if broadcast else TREE
    if not broadcast and (
        _prefix_kind(prefix) != JM_DICT or PyDict_Size(<object>prefix) != PyList_GET_SIZE(keys)
        or sorted_keys(<dict>prefix) is None    # equal keys may be in another order
    ):
        return TREE
    if broadcast and PyList_GET_SIZE(keys) == 0 and not _stands_for_nothing(prefix):
        return TREE
    add_step(structure, DICT_NODE, PyList_GET_SIZE(keys), <PyObject*>keys)
    for i in range(PyList_GET_SIZE(keys)):
        key = <object>PyList_GET_ITEM(keys, i)
        value = PyDict_GetItemWithError(mapping, key)
        if not broadcast:
            part = PyDict_GetItemWithError(<object>prefix, key)
        if value == NULL or (part == NULL and not broadcast):
            return TREE
        reason = flatten_tree(<object>value, part, structure, table)
        if reason:
            return reason
    return 0


cdef int flatten_by_registry(object obj, Structure* structure, jm_table* table) except -1:
    cdef int kind, reason = HIT
    cdef list leaves
    leaves, treedef = call_aside(_flatten_with_registry, obj)
    add_step(structure, REGISTRY_NODE, PyList_GET_SIZE(leaves), <PyObject*>treedef)
    for leaf in leaves:
        kind = classify(<PyObject*>leaf)
        if kind == JM_OTHER:
            kind = kind_of_unknown(leaf)
        if reason == HIT and not jm_kind_is_argument(kind):
            reason = reason_of_kind(kind)
        push_argument(table, leaf, kind, NULL)
    return reason


cdef int _flatten_node(
    object obj, int kind, PyObject* prefix, Structure* structure, jm_table* table
) except -1:
    if kind == JM_LIST:
        return _flatten_list(obj, prefix, structure, table)
    if kind == JM_TUPLE:
        return _flatten_tuple(obj, prefix, structure, table, TUPLE_NODE, NULL)
    if kind == JM_DICT:
        return _flatten_dict(obj, prefix, structure, table)
    if (
        PyTuple_Check(obj)
        and PyObject_HasAttrString(obj, "_fields")
        and PyDict_GetItemWithError(_node_types, type(obj)) == NULL
    ):
        cls = type(obj)
        return _flatten_tuple(obj, prefix, structure, table, NAMED_NODE, <PyObject*>cls)
    return NEEDS_REGISTRY if _is_prefix_leaf(prefix) else TREE


cdef int flatten_tree(
    object obj, PyObject* prefix, Structure* structure, jm_table* table
) except -1:
    cdef int reason, kind = classify(<PyObject*>obj)
    if kind == JM_OTHER:
        kind = kind_of_unknown(obj)
    if jm_kind_is_argument(kind):
        if not _is_prefix_leaf(prefix):
            return TREE
        push_argument(table, obj, kind, prefix)
        return add_leaf(structure)
    if kind == JM_NONE:
        # A prefix below None has to be None or a leaf; the reference knows the error.
        if not _stands_for_nothing(prefix):
            return TREE
        return add_step(structure, NONE_NODE, 0, NULL)
    if kind != JM_OTHER and kind < JM_NONE:
        return reason_of_kind(kind)
    jm_enter_recursive_call(" while flattening a pytree")
    try:
        reason = _flatten_node(obj, kind, prefix, structure, table)
    finally:
        Py_LeaveRecursiveCall()
    if reason == NEEDS_REGISTRY and structure.by_node:
        return flatten_by_registry(obj, structure, table)
    return reason


# --- Rebuilding ----------------------------------------------------------------------------------

cdef bint add_container(object node, Py_ssize_t n, Structure* structure) except -1:
    cdef PyObject* data = NULL
    cdef Op op
    cls, keys = node
    if cls is list:
        op = LIST_NODE
    elif cls is tuple:
        op = TUPLE_NODE
    elif cls is type(None):
        op = NONE_NODE
    elif cls is dict:
        op = DICT_NODE
        data = <PyObject*>keys
    elif (
        issubclass(cls, tuple) and hasattr(cls, "_fields")
        and PyDict_GetItemWithError(_node_types, cls) == NULL
    ):
        op = NAMED_NODE
        data = <PyObject*>cls
    else:
        return False
    add_step(structure, op, n, data)
    return True


cdef bint record_treedef(object treedef, Structure* structure) except -1:
    node = treedef.node_data()
    if node is None:
        add_leaf(structure)
        return True
    children = treedef.children()
    if not add_container(node, len(children), structure):
        return False
    return all([record_treedef(child, structure) for child in children])


ctypedef struct Cursor:
    Structure* structure
    PyObject** leaf      # the next one
    size_t stride        # bytes from one leaf to the next
    Py_ssize_t step
    Py_ssize_t leaves    # leaves still to take from the current LEAVES step


cdef inline object _take(Cursor* cursor):
    cdef object leaf = <object>cursor.leaf[0]
    cursor.leaf = <PyObject**>(<char*>cursor.leaf + cursor.stride)
    return leaf


cdef object _build(Cursor* cursor):
    cdef Step* step
    cdef Py_ssize_t i
    if cursor.leaves:
        cursor.leaves -= 1
        return _take(cursor)
    step = &cursor.structure.steps[cursor.step]
    cursor.step += 1
    if step.op == LEAVES:
        cursor.leaves = step.n - 1
        return _take(cursor)
    if step.op == NONE_NODE:
        return None
    if step.op == STATIC_LEAF:
        return (<StaticArgument>step.data).value
    if step.op == FIXED_NODE:
        return <object>step.data
    if step.op == LIST_NODE:
        node = PyList_New(step.n)
        for i in range(step.n):
            child = _build(cursor)
            Py_INCREF(child)
            PyList_SET_ITEM(node, i, child)
        return node
    if step.op == DICT_NODE:
        node = {}
        for i in range(step.n):
            PyDict_SetItem(node, (<list>step.data)[i], _build(cursor))
        return node
    if step.op == REGISTRY_NODE:
        return (<object>step.data).unflatten([_take(cursor) for _ in range(step.n)])
    node = PyTuple_New(step.n)
    for i in range(step.n):
        child = _build(cursor)
        Py_INCREF(child)
        PyTuple_SET_ITEM(node, i, child)
    if step.op == NAMED_NODE:
        return (<object>step.data)(*node)
    if step.op == FIELDS_NODE:
        return make_instance(<FieldsNode>step.data, <tuple>node)
    return node


cdef object rebuild_tree(Structure* structure, PyObject** leaf, size_t stride):
    cdef Cursor cursor
    cursor.structure = structure
    cursor.leaf = leaf
    cursor.stride = stride
    cursor.step = 0
    cursor.leaves = 0
    return _build(&cursor)
