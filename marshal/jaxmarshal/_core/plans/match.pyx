"""Walking objects that should have a recorded structure."""

from cpython.dict cimport PyDict_Keys, PyDict_Size
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.stdlib cimport malloc

from jaxmarshal._core.plans.intake cimport jm_take, jm_take_words
from jaxmarshal._core.values.capi cimport (
    PyDict_CheckExact, PyDict_GetItemWithError, PyDict_Next, PyList_CheckExact, PyTuple_CheckExact,
    Py_LeaveRecursiveCall, jm_enter_recursive_call
)
from jaxmarshal._core.values.errors cimport is_of_program, propagate
from jaxmarshal._core.values.fields cimport FieldsNode, attributes_of_node, field_value
from jaxmarshal._core.values.kinds cimport Py_TYPE
from jaxmarshal._core.values.live_objects cimport counters, jm_counters
from jaxmarshal._core.values.static_values cimport StaticArgument, same_static
from jaxmarshal._core.values.trees cimport (
    DICT_NODE, FIELDS_NODE, FIXED_NODE, GRAPH_NODE, LEAVES, LIST_NODE, NONE_NODE, REGISTRY_NODE,
    SPREAD_NODE, STATIC_LEAF, TUPLE_NODE, sorted_keys
)
from jaxmarshal._reports.counting cimport call_aside

from jaxmarshal._jax import private

cdef extern from *:
    """
    #define JM_COUNT_HEAP(counters, by) JM_COUNT(counters, live_heap, by)
    """
    void JM_COUNT_HEAP(jm_counters* counters, int by) noexcept

cdef extern from "jaxmarshal/containers.h":
    PyObject** jm_tuple_items(PyObject* items) noexcept
    PyObject** jm_list_items(PyObject* items) noexcept
    PyObject* jm_dict_at(object mapping, object key, Py_ssize_t position) noexcept

cdef object _flatten_with_registry = (
    private.pytree_registry.flatten if private.HAVE_PYTREE else None
)
cdef dict _node_types = private.pytree_node_types if private.HAVE_PYTREE else {}

# `match_object` as its callers see it; see `errors`.
ctypedef int (*match_function)(PyObject*, Walk*) noexcept


cdef int _find_positions(dict mapping, Step* node) except -1:
    """Remember where the keys are in a dict that has just matched.

    What a garbage collection calls may change it on the way: a place is only where to look first.
    """
    cdef Py_ssize_t i
    cdef list present = PyDict_Keys(mapping)
    cdef dict rank = {key: i for i, key in enumerate(present)}
    cdef Py_ssize_t* positions = <Py_ssize_t*>malloc(max(node.n, 1) * sizeof(Py_ssize_t))
    if positions == NULL:
        raise MemoryError()
    for i in range(node.n):
        positions[i] = rank.get((<list>node.data)[i], 0)
    node.positions = positions
    JM_COUNT_HEAP(&counters, 1)
    return 0


cdef inline int _match_child(PyObject* child, Walk* walk) except -1:
    """Like `match_object`, for an object that its parent may let go of on the way."""
    cdef int matched
    if walk.leaves:
        walk.leaves -= 1
        return jm_take(walk.intake, child)
    Py_INCREF(<object>child)
    matched = (<match_function>match_object)(child, walk)
    Py_DECREF(<object>child)
    return propagate() if matched < 0 else matched


cdef bint _has_keys_of_type(object mapping, object key) except -1:
    """Are all keys of a dict of the recorded keys' type? Equal ones of others sort otherwise."""
    cdef Py_ssize_t position = 0
    cdef PyObject* found
    while PyDict_Next(mapping, &position, &found, NULL):
        if Py_TYPE(found) != Py_TYPE(<PyObject*>key):
            return False
    return True


cdef int _match_dict(PyObject* obj, Step* node, Walk* walk) except -1:
    cdef Py_ssize_t i
    cdef PyObject* value
    cdef int matched
    cdef bint looked_up = False
    cdef object mapping = <object>obj
    cdef object keys = <object>node.data
    for i in range(node.n):
        key = <object>PyList_GET_ITEM(keys, i)
        value = NULL
        if node.positions != NULL:
            value = jm_dict_at(mapping, key, node.positions[i])
        if value == NULL:
            value = PyDict_GetItemWithError(mapping, key)
            if value == NULL:
                return 0
            looked_up = True
        matched = _match_child(value, walk)
        if matched != 1:
            return matched
    if PyDict_Size(mapping) != node.n:
        return 0
    if looked_up and not _has_keys_of_type(mapping, (<list>keys)[0]):
        return 0
    if node.positions == NULL:
        _find_positions(mapping, node)
    return 1


cdef int match_array(PyObject** items, Py_ssize_t n, Walk* walk) except -1:
    cdef Py_ssize_t i = 0
    cdef int matched
    while i < n:
        if walk.leaves:
            matched = _match_run(items + i, n - i, walk, &i)
        else:
            matched = _match_child(items[i], walk)
            i += 1
        if matched != 1:
            return matched
    return 1


cdef int _match_list(PyObject* items, Py_ssize_t n, Walk* walk) except -1:
    cdef Py_ssize_t i = 0
    cdef int matched
    while i < n:
        # Each time: another thread may have changed it while Python code ran.
        if PyList_GET_SIZE(<object>items) != n:
            return 0
        if walk.leaves:
            matched = _match_run(jm_list_items(items) + i, n - i, walk, &i)
        else:
            matched = _match_child(<PyObject*>PyList_GET_ITEM(<object>items, i), walk)
            i += 1
        if matched != 1:
            return matched
    return PyList_GET_SIZE(<object>items) == n


cdef int _match_run(PyObject** items, Py_ssize_t n, Walk* walk, Py_ssize_t* taken) except -1:
    """Take some of `n` objects where a run of leaves goes on; adds to `taken` how many.

    Python code may run, but only for the last one that is taken.
    """
    cdef Py_ssize_t some = min(n, walk.leaves)
    cdef Py_ssize_t quick = jm_take_words(walk.intake, items, some)
    walk.leaves -= quick
    taken[0] += quick
    if quick == some:
        return 1
    walk.leaves -= 1
    taken[0] += 1
    return jm_take(walk.intake, items[quick])


cdef object _flattened(PyObject* obj, Walk* walk):
    """Leaves and treedef of a custom node, whose code is run once a call; None where it failed."""
    cdef list known
    cdef Py_ssize_t i
    if walk.asked.flattened == NULL:
        return call_aside(_flatten_with_registry, <object>obj)
    known = <list>walk.asked.flattened
    for i in range(walk.taken, len(known)):
        if <PyObject*>(<tuple>known[i])[0] == obj:
            walk.taken = i + 1
            return (<tuple>known[i])[1]
    try:
        found = call_aside(_flatten_with_registry, <object>obj)
    except Exception as error:
        if is_of_program(error):
            raise
        found = None    # the reference runs it again, and raises
    known.append((<object>obj, found))
    walk.taken = len(known)
    return found


cdef bint _is_node_of(object treedef, object obj) except -1:
    """Is it a node of that class which only JAX's registry can flatten?

    Flattening another dict would ask the nodes in it, which other plans ask one by one.
    """
    root = treedef.node_data()
    if root is None:
        return True
    return root[0] is type(obj) and (root[0] is not dict or sorted_keys(obj) is None)


cdef int _match_by_registry(PyObject* obj, Step* node, Walk* walk) except -1:
    if walk.asked.flattened != NULL and not _is_node_of(<object>node.data, <object>obj):
        return 0
    found = _flattened(obj, walk)
    if found is None:
        return 0
    leaves, treedef = found
    if treedef != <object>node.data:
        return 0
    for leaf in leaves:
        if node.op == SPREAD_NODE:
            matched = _match_child(<PyObject*>leaf, walk)
        else:
            matched = jm_take(walk.intake, <PyObject*>leaf)
        if matched != 1:
            return matched
    return 1


cdef bint _same_words(
    FieldsNode node, object attributes, tuple names, tuple known, Walk* walk
) except -1:
    cdef Py_ssize_t i
    for i in range(len(names)):
        value = <object>field_value(node, attributes, names[i])
        if not same_static(<StaticArgument>known[i], <PyObject*>value, walk.asked):
            return False
    return True


cdef int _match_fields(PyObject* obj, FieldsNode node, Walk* walk) except -1:
    """An instance whose flatten function would do no more than this."""
    cdef Py_ssize_t i
    cdef int matched
    cdef tuple names = node.fields.dynamic
    attributes = attributes_of_node(node, obj)
    if attributes is None:
        return 0
    for i in range(len(names)):
        matched = _match_child(field_value(node, attributes, names[i]), walk)
        if matched != 1:
            return matched
    if node.has_extra and not _same_words(node, attributes, node.fields.extra, node.extra, walk):
        return 0
    return _same_words(node, attributes, node.fields.static, node.static, walk)


cdef int _match_node(PyObject* obj, Step* node, Walk* walk) except -1:
    if node.op == FIELDS_NODE:
        return _match_fields(obj, <FieldsNode>node.data, walk)
    if node.op == LIST_NODE:
        return PyList_CheckExact(obj) and _match_list(obj, node.n, walk)
    if node.op == DICT_NODE:
        return PyDict_CheckExact(obj) and _match_dict(obj, node, walk)
    if node.op == REGISTRY_NODE or node.op == SPREAD_NODE:
        return _match_by_registry(obj, node, walk)
    if node.op == GRAPH_NODE:
        return match_graph(obj, node.data, walk)
    if node.op == TUPLE_NODE:
        if not PyTuple_CheckExact(obj):
            return 0
    elif <PyObject*>Py_TYPE(obj) != node.data or (
        PyDict_GetItemWithError(_node_types, <object>node.data) != NULL
    ):
        return 0    # no namedtuple of this class, or one that was registered since
    if PyTuple_GET_SIZE(<object>obj) != node.n:
        return 0
    return match_array(jm_tuple_items(obj), node.n, walk)


cdef int match_object(PyObject* obj, Walk* walk) except -1:
    cdef Step* node
    cdef int matched
    if walk.leaves:
        walk.leaves -= 1
        return jm_take(walk.intake, obj)
    if walk.step == walk.end:
        return 0
    node = walk.step
    walk.step += 1
    if node.op == LEAVES:
        walk.leaves = node.n - 1
        return jm_take(walk.intake, obj)
    if node.op == NONE_NODE:
        return obj == <PyObject*>None
    if node.op == STATIC_LEAF:
        if PyDict_GetItemWithError(_node_types, <object>Py_TYPE(obj)) != NULL:
            return 0    # of a class that was registered since
        return same_static(<StaticArgument>node.data, obj, walk.asked)
    if node.op == FIXED_NODE:
        return obj == node.data
    jm_enter_recursive_call(" while matching a pytree")
    matched = (<int (*)(PyObject*, Step*, Walk*) noexcept>_match_node)(obj, node, walk)
    Py_LeaveRecursiveCall()
    return propagate() if matched < 0 else matched
