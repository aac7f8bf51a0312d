"""Walking objects that should have a recorded structure."""

from cpython.dict cimport PyDict_Keys, PyDict_Size
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.stdlib cimport malloc

from jaxmarshal._classify cimport Py_TYPE
from jaxmarshal._counters cimport counters, jm_counters
from jaxmarshal._errors cimport propagate
from jaxmarshal._intake cimport jm_take, jm_take_words
from jaxmarshal._tree cimport (
    DICT_NODE, LEAVES, LIST_NODE, NONE_NODE, REGISTRY_NODE, TUPLE_NODE
)

from jaxmarshal import _reference

cdef extern from *:
    """
    #define JM_COUNT_HEAP(counters, by) JM_COUNT(counters, live_heap, by)
    """
    void JM_COUNT_HEAP(jm_counters* counters, int by) noexcept
    bint PyList_CheckExact(PyObject* obj) noexcept
    bint PyTuple_CheckExact(PyObject* obj) noexcept
    bint PyDict_CheckExact(PyObject* obj) noexcept
    PyObject* PyDict_GetItemWithError(object mapping, object key) except? NULL
    void Py_LeaveRecursiveCall() noexcept

cdef extern from "jaxmarshal/containers.h":
    PyObject** jm_tuple_items(PyObject* items) noexcept
    PyObject** jm_list_items(PyObject* items) noexcept
    PyObject* jm_dict_at(object mapping, object key, Py_ssize_t position) noexcept

cdef extern from "jaxmarshal/compat.h":
    int jm_enter_recursive_call(const char* where) except -1

cdef object _flatten_with_registry = (
    _reference.pytree_registry.flatten if _reference.HAVE_PYTREE else None
)
cdef dict _node_types = _reference.pytree_node_types if _reference.HAVE_PYTREE else {}

# `match` as its callers see it; see `_errors`.
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
    """Like `match`, for an object that its parent may let go of on the way."""
    cdef int matched
    if walk.leaves:
        walk.leaves -= 1
        return jm_take(walk.intake, child)
    Py_INCREF(<object>child)
    matched = (<match_function>match)(child, walk)
    Py_DECREF(<object>child)
    return propagate() if matched < 0 else matched


cdef int _match_dict(PyObject* obj, Step* node, Walk* walk) except -1:
    cdef Py_ssize_t i
    cdef PyObject* value
    cdef int matched
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
        matched = _match_child(value, walk)
        if matched != 1:
            return matched
    if PyDict_Size(mapping) != node.n:
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


cdef int _match_by_registry(PyObject* obj, Step* node, Walk* walk) except -1:
    leaves, treedef = _flatten_with_registry(<object>obj)
    if treedef != <object>node.data:
        return 0
    for leaf in leaves:
        matched = jm_take(walk.intake, <PyObject*>leaf)
        if matched != 1:
            return matched
    return 1


cdef int _match_node(PyObject* obj, Step* node, Walk* walk) except -1:
    if node.op == LIST_NODE:
        return PyList_CheckExact(obj) and _match_list(obj, node.n, walk)
    if node.op == DICT_NODE:
        return PyDict_CheckExact(obj) and _match_dict(obj, node, walk)
    if node.op == REGISTRY_NODE:
        return _match_by_registry(obj, node, walk)
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


cdef int match(PyObject* obj, Walk* walk) except -1:
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
    jm_enter_recursive_call(" while matching a pytree")
    matched = (<int (*)(PyObject*, Step*, Walk*) noexcept>_match_node)(obj, node, walk)
    Py_LeaveRecursiveCall()
    return propagate() if matched < 0 else matched
