"""`flax.nnx.jit`: plans of the inner jitted function, run on the variables of live modules.

nnx splits the graph of modules among the arguments into a description and a list of arrays, calls
a jitted function with both, and merges what it returns into the live objects. A plan of that
function knows the description. A `GraphPlan` is that plan with the arguments as nnx finds them:
where the plan has a description, it has the graph of live objects that nnx would describe so
(`Part`), and it writes the results where nnx writes them. The reference performs everything else.
"""

import sys
import weakref

from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF

import numpy as np

from jaxmarshal._core.context.bypassed cimport Rules, is_untouched
from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.plans cimport match
from jaxmarshal._core.plans.backoff cimport failed_again, is_left
from jaxmarshal._core.plans.call cimport (
    Call, StaticRule, describe_arguments, signature_of, try_plans, try_plans_function
)
from jaxmarshal._core.plans.intake cimport jm_take
from jaxmarshal._core.plans.jit_configuration cimport jit_context
from jaxmarshal._core.plans.jit_plans cimport JitPlans, plans_of_jitted, static_rule_of
from jaxmarshal._core.plans.match cimport Walk
from jaxmarshal._core.plans.plan cimport (
    Plan, Plans, give_plans, plans_of, run_the_same, set_plans, take_plan
)
from jaxmarshal._core.values.array_words cimport words_are_vouched_for
from jaxmarshal._core.values.capi cimport (
    PyDict_CheckExact, PyDict_Next, PyErr_Occurred, PyList_CheckExact, PyLong_CheckExact,
    PyObject_GenericGetDict, PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE,
    PyUnicode_CheckExact, jm_list_items
)
from jaxmarshal._core.values.graph_nodes cimport Nodes, add_node, expected_count
from jaxmarshal._core.values.kinds cimport (
    JM_ARRAY, JM_KEY_ARRAY, JM_NDARRAY, Py_TYPE, jm_kind_of_type, types
)
from jaxmarshal._core.values.live_objects cimport JM_DEBUG
from jaxmarshal._core.values.methods cimport PyVectorcall_NARGS, make_method, vectorcallfunc
from jaxmarshal._core.values.static_values cimport StaticArgument
from jaxmarshal._core.values.trees cimport (
    GRAPH_NODE, NAMED_NODE, REGISTRY_NODE, Structure, copy_structure, rebuild_tree, record_treedef
)
from jaxmarshal._reports.counting cimport (
    NOT_RECORDED, OBJECT_LAYOUT, OPTIONS, REPLACED, UNSUPPORTED, count_hit, count_miss,
    entry_number, perform
)

from jaxmarshal._core.entries import jit
from jaxmarshal._jax import private

cdef extern from *:
    """
    /* Write a member through its own descriptor. */
    static inline int jm_set_member(PyObject *member, PyObject *obj, PyObject *value) {
        return Py_TYPE(member)->tp_descr_set(member, obj, value);
    }
    """
    int jm_set_member(PyObject* member, PyObject* obj, PyObject* value) except -1
    int PyObject_GenericSetAttr(PyObject* obj, PyObject* name, PyObject* value) except -1
    Py_ssize_t PyDict_GET_SIZE(object mapping) noexcept
    Py_ssize_t PyList_GET_SIZE(PyObject* obj) noexcept
    PyObject* PyList_GET_ITEM(PyObject* obj, Py_ssize_t i) noexcept

cdef extern from "jaxmarshal/compat.h":
    unsigned int jm_class_version(PyTypeObject* cls) noexcept
    Py_ssize_t jm_member_offset(PyObject* member) noexcept

cpdef enum Kind:
    STATIC        # that very object
    NODE          # a module or another node of a graph, with its attributes
    VARIABLE
    SAME          # a node or a variable that was met before
    LEAF          # an array, or what else the jitted function takes
    LIST
    TUPLE
    NAMED         # a namedtuple
    DICT
    STATE         # an `nnx.State`
    NOTHING       # None
    STATUS        # what nnx keeps of a module: where it was made
    NEW           # a variable that nnx makes in each call, numbered after those of the arguments

cdef int _entry = entry_number("nnx_jit")
cdef bint _active = False
cdef object _reference_call = None    # `JitWrapped.__call__`
cdef object _wrapped_type, _status_type, _state_type, _trace_type, _opaque_type
cdef object _mapping_type = None
cdef object _here = None              # by what nnx knows that no trace is in progress
cdef object _graph_context = None
cdef Rules _rules = None
cdef tuple _registries = ()
cdef object _make_plan = None         # see `use_flax`
cdef object _raw, _metadata, _trace, _jax_trace, _initializing, _set_up    # members
cdef Py_ssize_t _raw_at, _metadata_at, _trace_at, _jax_trace_at, _initializing_at, _set_up_at


#: Dataclasses compare field by field since Python 3.13, and so descriptions ask an attribute
#: whether it equals itself. Before, they were tuples, for which an object equals itself.
_ASKS_ITSELF = sys.version_info >= (3, 13)

_EQUAL_THEMSELVES = (str, bytes, int, bool, type(None), list, dict, tuple, set, frozenset, np.dtype)


def _equals_itself(value):
    """Is equality with itself true, whenever it is asked, and without code of users?"""
    cls = type(value)
    if cls is float or cls is complex:
        return value == value
    return cls in _EQUAL_THEMSELVES or cls.__eq__ is object.__eq__


# --- What a graph has to be ----------------------------------------------------------------------

cdef class Part:
    """A node of the graph of an argument, or a leaf.

    Attributes:
      kind: what it is.
      cls: its exact type, where `kind` does not say it.
      number: of a node, its place among all nodes in the order in which they are met.
      keys: attributes or keys in order; of a namedtuple, the places of its items in that order.
      parts: what is there; of a new variable, its value.
      value: of a static attribute, the object; of a variable, its metadata: names and values in
        turns; of a status, its two flags.
      leaf: the number of the leaf.
    """

    cdef readonly int kind
    cdef readonly object cls
    cdef readonly Py_ssize_t number
    cdef readonly tuple keys
    cdef readonly tuple parts
    cdef readonly object value
    cdef readonly Py_ssize_t leaf
    cdef unsigned int version    # of the class
    cdef object entry            # of a node's class in nnx's registry
    cdef bint asks               # of a static attribute: is equality with itself to be asked?

    def __init__(self, int kind, cls=None, Py_ssize_t number=-1, tuple keys=(), tuple parts=(),
                 value=None, Py_ssize_t leaf=-1):
        self.kind = kind
        self.cls = cls
        self.number = number
        self.keys = keys
        self.parts = parts
        self.value = value
        self.leaf = leaf
        self.asks = kind == STATIC and _ASKS_ITSELF and not _equals_itself(value)
        if kind == NODE:
            self.entry = _registries[0].get(cls)
        if cls is not None:
            getattr(cls, "__init__", None)    # a class without a version gets one
            self.version = jm_class_version(<PyTypeObject*>cls)


cdef class Write:
    """A node gets a result: as an attribute, or for None as the value of a variable."""

    cdef readonly Py_ssize_t number
    cdef readonly object key
    cdef readonly Part part

    def __init__(self, Py_ssize_t number, key, Part part):
        self.number = number
        self.key = key
        self.part = part


cdef inline PyObject* _member(PyObject* obj, Py_ssize_t offset) noexcept:
    """The value of a member of an object whose type has it there; borrowed, or NULL."""
    return (<PyObject**>(<char*>obj + offset))[0]


cdef inline bint _is_of_class(PyObject* obj, Part part) noexcept:
    return (
        <PyObject*>Py_TYPE(obj) == <PyObject*>part.cls
        and part.version != 0
        and jm_class_version(<PyTypeObject*>part.cls) == part.version
    )


cdef bint _may_stay(Part part, Walk* walk) except -1:
    """Does nnx find that a static attribute equals itself?"""
    if not part.asks:
        return True
    walk.asked.ran = True
    return bool(part.value == part.value)


cdef inline int _match_child(Part part, PyObject* obj, Nodes nodes, Walk* walk) except -1:
    """Like `_match_part`, for an object that its parent may let go of on the way."""
    cdef int matched
    if part.kind == STATIC:
        return obj == <PyObject*>part.value and _may_stay(part, walk)
    Py_INCREF(<object>obj)
    try:
        matched = _match_part(part, obj, nodes, walk)
    finally:
        Py_DECREF(<object>obj)
    return matched


cdef inline bint _is_key(PyObject* key, PyObject* known) except -1:
    if key == known:
        return True
    return (PyUnicode_CheckExact(key) or PyLong_CheckExact(key)) and <object>key == <object>known


cdef bint _is_put_right(Part part, Py_ssize_t i, PyObject* value, Nodes nodes) except -1:
    """Is it equal to the recorded static attribute, which nnx puts in its place?"""
    cdef PyObject* known = <PyObject*>(<Part>part.parts[i]).value
    if Py_TYPE(value) == Py_TYPE(known) and <PyObject*>Py_TYPE(known) == <PyObject*>_mapping_type:
        if not _is_plain_mapping((<object>value)._mapping, (<object>known)._mapping):
            return False
    elif not _same_value(value, known):
        return False
    if nodes.puts is None:
        nodes.puts = []
    nodes.puts.append((part.number, part.keys[i], <object>known))
    return True


cdef bint _is_plain_mapping(object one, object other) except -1:
    """Are they equal dicts of what compares by value alone?"""
    if type(one) is not dict or type(other) is not dict or len(one) != len(other):
        return False
    for key, value in one.items():
        if type(key) is not str or not _is_plain(value):
            return False
    return one == other


cdef int _match_items(Part part, object items, Nodes nodes, Walk* walk) except -1:
    """The items of a dict, which have to be there in the recorded order."""
    cdef Py_ssize_t i, n = len(part.parts), position = 0
    cdef Part child
    cdef PyObject* key
    cdef PyObject* value
    cdef int matched
    if PyDict_GET_SIZE(items) != n:
        return 0
    for i in range(n):
        if not PyDict_Next(items, &position, &key, &value):
            return 0
        if not _is_key(key, PyTuple_GET_ITEM(<PyObject*>part.keys, i)):
            return 0
        child = <Part>part.parts[i]
        if child.kind == STATIC and part.kind == NODE:
            if value != <PyObject*>child.value:
                if not _is_put_right(part, i, value, nodes):
                    return 0
            elif not _may_stay(child, walk):
                return 0
            continue
        matched = _match_child(child, value, nodes, walk)
        if matched != 1:
            return matched
    return PyDict_GET_SIZE(items) == n


cdef int _match_sequence(Part part, PyObject* obj, Nodes nodes, Walk* walk) except -1:
    cdef Py_ssize_t i, n = len(part.parts)
    cdef PyObject* value
    cdef int matched
    for i in range(n):
        if part.kind == LIST:
            if PyList_GET_SIZE(obj) != n:
                return 0
            value = PyList_GET_ITEM(obj, i)
        elif PyTuple_GET_SIZE(obj) != n:
            return 0
        else:
            value = PyTuple_GET_ITEM(
                obj, <Py_ssize_t>part.keys[i] if part.kind == NAMED else i
            )
        matched = _match_child(<Part>part.parts[i], value, nodes, walk)
        if matched != 1:
            return matched
    return n == (PyList_GET_SIZE(obj) if part.kind == LIST else PyTuple_GET_SIZE(obj))


cdef bint _is_plain(object value) except -1:
    """Does equality of such a value depend on nothing but itself?"""
    cdef object cls = type(value)
    if cls is tuple:
        return all([_is_plain(item) for item in value])
    return cls is str or cls is int or cls is bool or cls is float or value is None


cdef bint _same_value(PyObject* found, PyObject* known) except -1:
    if found == known:
        return True
    if Py_TYPE(found) != Py_TYPE(known) or not _is_plain(<object>found):
        return False
    return <object>found == <object>known


cdef int _match_metadata_by_name(dict metadata, tuple known) except -1:
    cdef Py_ssize_t i
    for name in metadata:
        if type(name) is not str:
            return 0
    for i in range(0, len(known), 2):
        if known[i] not in metadata:
            return 0
        value = metadata[known[i]]
        if not _same_value(<PyObject*>value, PyTuple_GET_ITEM(<PyObject*>known, i + 1)):
            return 0
    return 1


cdef int _match_metadata(PyObject* metadata, tuple known) except -1:
    cdef Py_ssize_t i, n = len(known) // 2, position = 0
    cdef PyObject* key
    cdef PyObject* value
    if metadata == NULL or not PyDict_CheckExact(metadata):
        return 0
    if PyDict_GET_SIZE(<object>metadata) != n:
        return 0
    for i in range(n):
        if not PyDict_Next(<object>metadata, &position, &key, &value):
            return 0
        if key != PyTuple_GET_ITEM(<PyObject*>known, 2 * i):
            return _match_metadata_by_name(<object>metadata, known)
        if not _same_value(value, PyTuple_GET_ITEM(<PyObject*>known, 2 * i + 1)):
            return 0
    return 1


cdef int _is_from_here(PyObject* trace_state) except -1:
    """Was something made outside of any trace, as nnx notes it?"""
    cdef PyObject* jax_trace
    if trace_state == NULL or <PyObject*>Py_TYPE(trace_state) != <PyObject*>_trace_type:
        return 0
    jax_trace = _member(trace_state, _jax_trace_at)
    if jax_trace == NULL or <PyObject*>Py_TYPE(jax_trace) != <PyObject*>_opaque_type:
        return 0
    return (<object>jax_trace)._trace_ref is _here


cdef int _match_variable(Part part, PyObject* obj, Nodes nodes, Walk* walk) except -1:
    cdef PyObject* value
    cdef int matched
    if not _is_of_class(obj, part) or not add_node(nodes, obj):
        return 0
    if not _match_metadata(_member(obj, _metadata_at), <tuple>part.value):
        return 0
    if not _is_from_here(_member(obj, _trace_at)):
        return 0
    value = _member(obj, _raw_at)
    if value == NULL:
        return 0
    Py_INCREF(<object>value)
    try:
        matched = jm_take(walk.intake, value)
    finally:
        Py_DECREF(<object>value)
    return matched


cdef int _match_state(Part part, PyObject* obj, Nodes nodes, Walk* walk) except -1:
    cdef Py_ssize_t position = 0
    cdef PyObject* key
    cdef PyObject* value
    cdef object own
    cdef int matched
    if not _is_of_class(obj, part):
        return 0
    own = PyObject_GenericGetDict(<object>obj, NULL)
    if PyDict_GET_SIZE(own) != 1 or not PyDict_Next(own, &position, &key, &value):
        return 0
    if <object>key != "_mapping" or not PyDict_CheckExact(value):
        return 0
    items = <object>value
    matched = _match_items(part, items, nodes, walk)
    return matched


cdef int _match_status(Part part, PyObject* obj) except -1:
    if not _is_of_class(obj, part):
        return 0
    return (
        _member(obj, _initializing_at) == <PyObject*>(<tuple>part.value)[0]
        and _member(obj, _set_up_at) == <PyObject*>(<tuple>part.value)[1]
    )


cdef bint _is_array(PyObject* obj) noexcept:
    cdef int kind = jm_kind_of_type(&types, Py_TYPE(obj))
    return kind == JM_ARRAY or kind == JM_KEY_ARRAY or kind == JM_NDARRAY


cdef int _match_part(Part part, PyObject* obj, Nodes nodes, Walk* walk) except -1:
    """1 where the object is what the part says, after its leaves were taken; else 0."""
    cdef int kind = part.kind
    if kind == LEAF:    # nnx takes nothing else for one: scalars of numpy are static
        return _is_array(obj) and jm_take(walk.intake, obj)
    if kind == VARIABLE:
        return _match_variable(part, obj, nodes, walk)
    if kind == SAME:
        return part.number < nodes.count and nodes.items[part.number] == obj
    if kind == NODE:
        if not _is_of_class(obj, part) or not add_node(nodes, obj):
            return 0
        if (<dict>_registries[0]).get(part.cls) is not part.entry:
            return 0
        return _match_items(part, PyObject_GenericGetDict(<object>obj, NULL), nodes, walk)
    if kind == STATUS:
        return _match_status(part, obj)
    if kind == NOTHING:
        return obj == <PyObject*>None
    if kind == DICT:
        return PyDict_CheckExact(obj) and _match_items(part, <object>obj, nodes, walk)
    if kind == STATE:
        return _match_state(part, obj, nodes, walk)
    if kind == LIST:
        return PyList_CheckExact(obj) and _match_sequence(part, obj, nodes, walk)
    if kind == TUPLE:
        return PyTuple_CheckExact(obj) and _match_sequence(part, obj, nodes, walk)
    return _is_of_class(obj, part) and _match_sequence(part, obj, nodes, walk)


cdef int _match_graph(PyObject* obj, PyObject* graph, Walk* walk) except -1:
    if walk.nodes == NULL:
        return 0
    return _match_child(<Part>graph, obj, <Nodes>walk.nodes, walk)


match.match_graph = _match_graph


# --- Plans ---------------------------------------------------------------------------------------

cdef class GraphPlan(Plan):
    cdef Plan inner         # of the jitted function, from which this one was made
    cdef list writes
    cdef list keys          # of results that are typed keys: (number, implementation)
    cdef Py_ssize_t first   # the number of the first result that is returned
    # Of what is returned: numbers of results, -1 - number of a node, or parts that are built.
    cdef tuple sources
    cdef object unflatten_returned    # makes the tree that is returned; None: `results` does


# The plans of one function that `nnx.jit` made; or of its calls by `nnx.cached_partial`, which
# belong to its cache.
cdef class GraphPlans(Plans):
    cdef object jitted       # weak reference to the inner jitted function
    cdef StaticRule rule     # of that
    cdef Py_ssize_t known    # how many types of nodes there were
    cdef bytes expected      # of a cache: the addresses of its nodes and variables, by number


cdef Py_ssize_t _known_types() except -1:
    cdef Py_ssize_t n = 0
    for registry in _registries:
        n += len(<dict>registry)
    return n


def descriptions(Plan plan):
    """The treedefs of what only JAX's registry can take apart among a plan's arguments."""
    cdef Py_ssize_t i
    return [
        <object>plan.arguments.steps[i].data for i in range(plan.arguments.count)
        if plan.arguments.steps[i].op == REGISTRY_NODE
    ]


def static_values(Plan plan):
    """The static arguments of a plan."""
    return [(<StaticArgument>argument).value for argument in plan.statics or ()]


def named_types(Plan plan):
    """The types of the namedtuples among the arguments of a plan."""
    cdef Py_ssize_t i
    return [
        <object>plan.arguments.steps[i].data for i in range(plan.arguments.count)
        if plan.arguments.steps[i].op == NAMED_NODE
    ]


class KeyData:
    """Stands for the base array of a typed key: the result of this number."""

    dtype = np.dtype(np.uint32)

    def __init__(self, number, impl):
        self.number = number
        self.impl = impl
        self.shape = impl.key_shape
        self.ndim = len(self.shape)


cdef int _add_keys(object treedef, list leaves, Py_ssize_t* n) except -1:
    """Replace the numbers of leaves that are base arrays of typed keys."""
    node = treedef.node_data()
    if node is None:
        n[0] += 1
        return 0
    if node[0] is private.PRNGKeyArray:
        leaves[n[0]] = KeyData(n[0], node[1])
    for child in treedef.children():
        _add_keys(child, leaves, n)
    return 0


def numbered_results(Plan plan):
    """The tree of a plan's results, with their numbers for leaves; `KeyData` in typed keys."""
    cdef list numbers = list(range(len(plan.handlers)))
    cdef Py_ssize_t n = 0
    if plan.unflatten is not None:
        _add_keys(plan.unflatten.__self__, numbers, &n)
        return plan.unflatten(numbers)
    return rebuild_tree(&plan.results, jm_list_items(numbers), sizeof(void*))


cdef int _put_graphs(Structure* structure, list graphs) except -1:
    """Have the parts be in the places of their descriptions."""
    cdef Py_ssize_t i, n = 0
    for i in range(structure.count):
        if structure.steps[i].op == REGISTRY_NODE:
            Py_DECREF(<object>structure.steps[i].data)
            Py_INCREF(graphs[n])
            structure.steps[i].data = <PyObject*>graphs[n]
            structure.steps[i].op = GRAPH_NODE
            n += 1
    return 0


def make_graph_plan(
    Plan inner, list graphs, list writes, list keys, returned, bint by_registry, first, sources
):
    """A plan for live arguments.

    Args:
      inner: the plan of the jitted function.
      graphs: a `Part` for each of its `descriptions`.
      writes: a `Write` for each that nnx does.
      keys: of the results that are typed keys, number and implementation.
      returned: the treedef of what is returned.
      by_registry: whether JAX's registry may make it: it runs no code but flax's.
      first: the number of the first result that is returned.
      sources: None where all that is returned are results, in order; else see `GraphPlan`.

    Returns:
      The plan, or None where only JAX can build what is returned.
    """
    cdef GraphPlan plan = GraphPlan(inner.count)
    if not record_treedef(returned, &plan.results):
        if not by_registry:
            return None
        plan.unflatten_returned = returned.unflatten
    run_the_same(plan, inner)
    copy_structure(&plan.arguments, &inner.arguments)
    _put_graphs(&plan.arguments, graphs)
    plan.inner = inner
    plan.positional = inner.positional
    plan.keywords = inner.keywords
    plan.names = inner.names
    plan.statics = inner.statics
    plan.is_static = inner.is_static
    plan.writes = writes
    plan.keys = keys
    plan.first = first
    plan.sources = sources
    return plan


# --- Results -------------------------------------------------------------------------------------

cdef object _build(Part part, list results, Nodes nodes):
    """An object that nnx makes anew in every call."""
    cdef int kind = part.kind
    cdef list values
    cdef Py_ssize_t i
    if kind == STATIC:
        return part.value
    if kind == LEAF:
        return results[part.leaf]
    if kind == VARIABLE or kind == NODE or kind == SAME:
        return <object>nodes.items[part.number]
    if kind == NOTHING:
        return None
    if kind == STATUS:
        return _new_status(part)
    if kind == NEW:
        return _new_variable(part, results, nodes)
    values = [_build(<Part>child, results, nodes) for child in part.parts]
    if kind == LIST:
        return values
    if kind == TUPLE:
        return tuple(values)
    if kind == NAMED:
        ordered = [None] * len(values)
        for i in range(len(values)):
            ordered[<Py_ssize_t>part.keys[i]] = values[i]
        return part.cls(*ordered)
    items = dict(zip(part.keys, values))
    return items if kind == DICT else _state_type(items)


cdef object _new_variable(Part part, list results, Nodes nodes):
    cdef tuple items = <tuple>part.value
    value = _build(<Part>part.parts[0], results, nodes)
    variable = part.cls.from_metadata(value, dict(zip(items[::2], items[1::2])))
    add_node(nodes, <PyObject*>variable)
    return variable


cdef object _new_status(Part part):
    cdef object status = _status_type.__new__(_status_type)
    cdef object trace = _trace_type.__new__(_trace_type)
    cdef object opaque = _opaque_type(_here)
    jm_set_member(<PyObject*>_jax_trace, <PyObject*>trace, <PyObject*>opaque)
    jm_set_member(<PyObject*>_status_trace, <PyObject*>status, <PyObject*>trace)
    jm_set_member(
        <PyObject*>_initializing, <PyObject*>status, <PyObject*>(<tuple>part.value)[0]
    )
    jm_set_member(<PyObject*>_set_up, <PyObject*>status, <PyObject*>(<tuple>part.value)[1])
    return status


cdef object _status_trace = None


cdef object _returned(object source, list results, Nodes nodes):
    if type(source) is Part:
        return _build(<Part>source, results, nodes)
    return results[source] if source >= 0 else <object>nodes.items[-1 - <Py_ssize_t>source]


cdef object _finish(GraphPlan plan, list results, Nodes nodes):
    """Write what nnx writes, and build what it returns."""
    cdef Write write
    cdef PyObject* node
    cdef Py_ssize_t cached = expected_count(nodes)    # of these nnx writes variables only
    if nodes.puts is not None:
        for number, key, value in nodes.puts:
            if number >= cached:
                PyObject_GenericSetAttr(
                    nodes.items[<Py_ssize_t>number], <PyObject*>key, <PyObject*>value
                )
    for number, impl in plan.keys:
        results[number] = private.PRNGKeyArray(impl, results[number])
    for item in plan.writes:
        write = <Write>item
        node = nodes.items[write.number]
        if write.key is None:
            jm_set_member(
                <PyObject*>_raw, node, PyList_GET_ITEM(<PyObject*>results, write.part.leaf)
            )
        elif write.number >= cached:
            value = _build(write.part, results, nodes)
            PyObject_GenericSetAttr(node, <PyObject*>write.key, <PyObject*>value)
    if plan.unflatten_returned is not None:
        return plan.unflatten_returned(
            results[plan.first:] if plan.sources is None
            else [_returned(source, results, nodes) for source in plan.sources]
        )
    if plan.sources is None:
        return rebuild_tree(&plan.results, jm_list_items(results) + plan.first, sizeof(void*))
    leaves = [_returned(source, results, nodes) for source in plan.sources]
    return rebuild_tree(&plan.results, jm_list_items(leaves), sizeof(void*))


# --- Calling -------------------------------------------------------------------------------------

cdef bint _are_current(GraphPlans plans, object jitted) except -1:
    """Are the plans of this very function, and is what they were made from still valid?"""
    if plans is None or plans.jitted() is not jitted or plans.known != _known_types():
        return False
    for plan in plans.plans:
        if (<GraphPlan>plan).inner.dropped:
            return False
    return True


cdef int _expect_front(object jitted) except -1:
    """Have plans of the inner jitted function be made, whatever else is installed."""
    cdef JitPlans plans
    jit.accelerate(jitted, jit.BY_FRONTS)
    plans = plans_of_jitted(jitted)
    if plans is not None and not plans.takes_host:
        plans.takes_host = True
        plans.failures = plans.leave = 0
    return 0


cdef bytes _expected_by(object cache):
    """The addresses of what a cache of `nnx.cached_partial` knows, by number; b"" if unsuitable."""
    cdef dict found = {}
    for static in cache.values():
        for obj, number in static.new_ref_index.items():
            found[number] = id(obj)
    if sorted(found) != list(range(len(found))):
        return b""
    return np.array([found[number] for number in range(len(found))], np.uintp).tobytes()


cdef GraphPlans _plans_for(object owner, object jitted, object cache):
    """The plans of a function or a cache."""
    cdef GraphPlans plans = <GraphPlans>plans_of(owner)
    if not _are_current(plans, jitted):
        if plans is None:
            plans = GraphPlans()
            if cache is not None:
                plans.expected = _expected_by(cache)
            give_plans(owner, plans)
        set_plans(plans, [])
        _expect_front(jitted)
        plans.jitted = weakref.ref(jitted)
        plans.rule = static_rule_of(jitted)
        plans.known = _known_types()
        plans.failures = plans.skip = 0
    return plans


cdef Plan _latest(object jitted):
    """The plan of the jitted function that was run last, or None."""
    cdef Plan plan, latest = None
    cdef JitPlans plans = plans_of_jitted(jitted)
    if plans is None:
        return None
    for plan in plans.plans:
        if latest is None or plan.used > latest.used:
            latest = plan
    return latest


cdef int _learn(GraphPlans plans, object jitted, unsigned long long signature) except -1:
    """The reference has performed a call: make a plan for the next one."""
    cdef Plan inner, plan = None
    cdef list others
    # Until a plan fits, attempts become rarer.
    plans.skip = failed_again(&plans.failures, 0)
    try:
        inner = _latest(jitted)
        if inner is not None and not inner.dropped:
            plan = _make_plan(inner)
    except Exception:
        if JM_DEBUG:
            raise
    if plan is None:
        return 0
    plan.signature = signature
    others = [other for other in plans.plans if (<GraphPlan>other).inner is not inner]
    if len(others) < len(plans.plans):
        plans.plans = others
    take_plan(plans, plan)
    return 0


cdef PyObject* _call_reference(PyObject** args, size_t nargsf, PyObject* names) noexcept:
    return perform(<PyObject*>_reference_call, args, nargsf, names)


cdef object _inner_of(object wrapped, int* reason):
    """The jitted function of a wrapped one, or None where only the reference makes such calls."""
    cdef dict own
    reason[0] = UNSUPPORTED
    if not _active or type(wrapped) is not _wrapped_type:
        return None
    if not words_are_vouched_for():
        reason[0] = OBJECT_LAYOUT
        return None
    if not is_untouched(_rules):
        reason[0] = REPLACED
        return None
    reason[0] = OPTIONS
    own = PyObject_GenericGetDict(wrapped, NULL)
    if own.get("in_shardings") is not None or own.get("kwarg_shardings") is not None:
        return None
    return own.get("jitted_fn")


cdef PyObject* _call_and_learn(
    PyObject** args, size_t nargsf, PyObject* names, GraphPlans plans, object jitted,
    Context context, Call* call
) except? NULL:
    cdef PyObject* result
    cdef unsigned long long signature
    if is_left(&plans.skip):
        return _call_reference(args, nargsf, names)
    signature = signature_of(call, plans.rule, context)
    result = _call_reference(args, nargsf, names)
    if result != NULL:
        _learn(plans, jitted, signature)
    return result


cdef PyObject* _call(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """`JitWrapped.__call__(self, *args, **kwargs)`."""
    cdef Py_ssize_t n = PyVectorcall_NARGS(nargsf)
    cdef GraphPlans plans
    cdef Context context
    cdef Call call
    cdef Nodes nodes
    cdef PyObject* found
    cdef int reason = UNSUPPORTED
    jitted = _inner_of(<object>args[0], &reason) if n else None
    if jitted is None:
        count_miss(_entry, reason)
        return _call_reference(args, nargsf, names)
    context = jit_context(&reason)
    if context is None:
        count_miss(_entry, reason)
        return _call_reference(args, nargsf, names)
    cache = _graph_context.tmp_static_cache
    plans = _plans_for(<object>args[0] if cache is None else cache, jitted, cache)
    if cache is not None and not plans.expected:
        count_miss(_entry, OPTIONS)
        return _call_reference(args, nargsf, names)
    nodes = Nodes()
    nodes.expected = plans.expected
    describe_arguments(&call, args + 1, n - 1, names)
    call.entry = _entry
    call.nodes = <PyObject*>nodes
    reason = NOT_RECORDED
    found = NULL
    if plans.plans:
        if cache is not None:    # whoever performs the call takes it
            _graph_context.tmp_static_cache = None
        found = (<try_plans_function>try_plans)(plans, plans.rule, context, &call, &reason)
        if found == NULL and PyErr_Occurred() != NULL:
            return NULL
        if found == NULL and cache is not None:
            _graph_context.tmp_static_cache = cache
    if found == NULL:
        count_miss(_entry, reason)
        nodes = None
        call.nodes = NULL
        return _call_and_learn(args, nargsf, names, plans, jitted, context, &call)
    count_hit(_entry)
    plans.failures = plans.skip = 0
    return _take_results(&call, found, nodes)


cdef PyObject* _take_results(Call* call, PyObject* found, Nodes nodes) except NULL:
    """Finish a call; takes over the references to the results and to the plan."""
    cdef list results = <list>found
    cdef GraphPlan plan = <GraphPlan>call.fitted
    Py_DECREF(results)
    Py_DECREF(plan)
    made = _finish(plan, results, nodes)
    Py_INCREF(made)
    return <PyObject*>made


# --- The library ---------------------------------------------------------------------------------

def method_for(original):
    """The replacement of `JitWrapped.__call__`."""
    return make_method(<vectorcallfunc>_call, original)


def use_flax(call, names, rules, make_plan):
    """Tell what of the library is needed; it is active from then on.

    Args:
      call: `JitWrapped.__call__`.
      names: what `jaxmarshal.fronts.nnx` has looked up.
      rules: modules, classes and tables that have to stay as they are.
      make_plan: makes a plan for live arguments of one of the jitted function, or returns None.
    """
    global _active, _reference_call, _wrapped_type, _status_type, _state_type, _trace_type
    global _opaque_type, _mapping_type, _here, _graph_context, _rules, _registries, _make_plan
    global _raw, _metadata
    global _trace, _jax_trace, _initializing, _set_up, _status_trace
    global _raw_at, _metadata_at, _trace_at, _jax_trace_at, _initializing_at, _set_up_at
    _reference_call = call
    _wrapped_type, _status_type, _state_type = names["wrapped"], names["status"], names["state"]
    _trace_type, _opaque_type = names["trace"], names["opaque"]
    _mapping_type = names["mapping"]
    _here = private.eval_trace._weakref
    _graph_context = names["context"]
    _registries = names["registries"]
    _make_plan = make_plan
    _raw, _metadata, _trace = names["raw"], names["metadata"], names["variable_trace"]
    _jax_trace, _status_trace = names["jax_trace"], names["status_trace"]
    _initializing, _set_up = names["initializing"], names["set_up"]
    offsets = [
        jm_member_offset(<PyObject*>member)
        for member in (_raw, _metadata, _trace, _jax_trace, _initializing, _set_up, _status_trace)
    ]
    if min(offsets) < 0:
        return False
    _raw_at, _metadata_at, _trace_at, _jax_trace_at, _initializing_at, _set_up_at, _ = offsets
    _rules = Rules(rules)
    _active = True
    return True


def live_plans(wrapped):
    """How many plans a function has; for tests."""
    plans = plans_of(wrapped)
    return 0 if plans is None else len(plans.plans)
