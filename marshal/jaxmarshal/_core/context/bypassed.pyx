"""Watching what fast paths go past."""

import builtins
from functools import partial
from types import FunctionType

from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF, Py_XDECREF

from jaxmarshal._core.values.capi cimport (
    PyDict_Next, PyObject_GenericGetDict, PyUnicode_CHECK_INTERNED, jm_tuple_items
)

from jaxmarshal._jax import private

cdef extern from "jaxmarshal/compat.h":
    PyObject* jm_class_dict(PyTypeObject* cls) noexcept

cdef extern from "jaxmarshal/dict_watcher.h":
    int jm_start_watching(WatchedDicts* watched) noexcept
    int jm_watch_dict(int watcher, PyObject* dictionary) except -1
    bint jm_changes_are_made(const WatchedDicts* watched) noexcept

cdef dict _substitutes = {}    # id of a function of the reference -> all that jaxmarshal puts there


watched_dicts.changes = 1
cdef int _watcher = jm_start_watching(&watched_dicts)


# --- Modules, classes and tables -----------------------------------------------------------------

cdef class Rules:
    def __cinit__(self, list places):
        """`places` are modules, classes and tables."""
        self.watched = []
        self.changed = set()
        self.own = vars(private.eval_trace) if places else {}
        self.own_count = len(self.own)
        _watch_more(self, places)

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            Py_XDECREF(self.dicts[i])
        PyMem_Free(self.dicts)
        PyMem_Free(self.versions)


cdef void* _grown(void* memory, size_t size) except NULL:
    memory = PyMem_Realloc(memory, size)
    if memory == NULL:
        raise MemoryError()
    return memory


cdef dict _dict_of(object place):
    if isinstance(place, type):
        return <dict>jm_class_dict(<PyTypeObject*>place)
    return place if isinstance(place, dict) else vars(place)


cdef int _watch_more(Rules rules, list places) except -1:
    cdef Py_ssize_t room = rules.count + len(places) + 1
    rules.changes = 0
    rules.dicts = <PyObject**>_grown(rules.dicts, room * sizeof(PyObject*))
    rules.versions = <uint64_t*>_grown(rules.versions, room * sizeof(uint64_t))
    for place in places:
        mapping = _dict_of(place)
        if _watcher >= 0:
            jm_watch_dict(_watcher, <PyObject*>mapping)
        Py_INCREF(mapping)
        rules.dicts[rules.count] = <PyObject*>mapping
        rules.versions[rules.count] = jm_dict_version(<PyObject*>mapping)
        rules.count += 1
        rules.watched.append((dict(mapping), place))
    return 0


cdef bint _is_known(object before, object now) except -1:
    """Is it the same, or one of them what jaxmarshal itself puts in the place of the other?"""
    return now is before or any([
        one is known
        for one, original in ((now, before), (before, now))
        for known in _substitutes.get(id(original), ())
    ])


cdef bint _hides_another(object name, object place) except -1:
    """Does a name that is new there stand for something that was found elsewhere before?"""
    if isinstance(place, dict):
        return False    # a table grows when types become known
    if isinstance(place, type):
        return name == "__getattr__" or any([name in vars(base) for base in place.__mro__[1:]])
    return hasattr(builtins, name)


cdef bint _holds_the_same(dict mapping, tuple watched) except -1:
    cdef dict before = watched[0]
    for name, value in before.items():
        if name not in private.VARIABLES and not _is_known(value, mapping.get(name, mapping)):
            return False
    if len(mapping) == len(before):
        return True
    return not any([
        name not in before and _hides_another(name, watched[1]) for name in mapping
    ])


cdef int _look_again(Rules rules) except -1:
    cdef Py_ssize_t i
    cdef uint64_t version
    for i in range(rules.count):
        version = jm_dict_version(rules.dicts[i])
        if rules.versions[i] == version:
            continue
        if _holds_the_same(<dict>rules.dicts[i], rules.watched[i]):
            rules.changed.discard(i)
        else:
            rules.changed.add(i)
        rules.versions[i] = version
    return 0


cdef bint look_again(Rules rules) noexcept:
    try:
        _look_again(rules)
    except Exception:
        return False    # looked at again the next time
    return not rules.changed


cdef void trust_watcher(Rules rules) noexcept:
    # A change is announced before it is made, and other watchers may run code in between. If that
    # makes another change, the versions are compared in every call from then on.
    if _watcher >= 0 and jm_changes_are_made(&watched_dicts):
        rules.changes = watched_dicts.changes


def put_in_place_of(original, substitute):
    """Say that jaxmarshal itself may put `substitute` where `original` was."""
    if original is not None:
        _substitutes.setdefault(id(original), []).append(substitute)


def is_untouched_or_ours(original, now):
    """Is it still this function of the reference, or what jaxmarshal itself put there?"""
    return _is_known(original, now)


# --- Primitives ----------------------------------------------------------------------------------

# On the values of these it depends how a primitive is run.
cdef frozenset _count = frozenset((
    "impl", "bind_with_trace", "multiple_results", "call_primitive", "ref_primitive",
    "ref_allocating", "skip_canonicalization", "to_lojax", "is_high",
))
# With one of these of its own, a primitive binds in a way of its own.
cdef frozenset _refused = frozenset(("bind", "is_high"))


# And these make it one that only the reference can run.
cdef tuple _false_only = (
    "ref_primitive", "ref_allocating", "call_primitive", "map_primitive"
)

cdef object _primitive_type = private.Primitive
cdef object _apply_primitive = private.apply_primitive
cdef object _any = object()    # stands for a value that does not count


cdef class Attributes:
    pass


cdef Attributes attributes_of(object prim, bint of_one_program=False):
    cdef Attributes attributes = Attributes()
    cdef dict own = vars(prim)
    for name in own:
        if type(name) is not str or not PyUnicode_CHECK_INTERNED(<PyObject*>name):
            return None
        if name in _refused and not (
            of_one_program and name == "is_high" and _is_by_jax(own[name])
        ):
            return None
        # Of one of JAX's own with a jaxpr among its parameters, that may need it.
        if name == "to_lojax" and not _is_by_jax(own[name]):
            return None
    attributes.names = tuple(own)
    attributes.values = tuple([
        value if name in _count else _any for name, value in own.items()
    ])
    return attributes


cdef Attributes all_attributes_of(object function):
    cdef Attributes attributes = Attributes()
    cdef dict own = vars(function)
    attributes.names, attributes.values = tuple(own), tuple(own.values())
    return attributes


cdef bint has_attributes(object prim, Attributes attributes) except -1:
    cdef dict own = PyObject_GenericGetDict(prim, NULL)
    cdef PyObject** names = jm_tuple_items(attributes.names)
    cdef PyObject** values = jm_tuple_items(attributes.values)
    cdef Py_ssize_t i, position = 0
    cdef PyObject* name
    cdef PyObject* value
    cdef uint64_t version = jm_object_dict_version(<PyObject*>own)
    if version and version == attributes.version:
        return True
    if len(own) != len(attributes.names):
        return False
    for i in range(len(attributes.names)):
        if not PyDict_Next(own, &position, &name, &value) or name != names[i]:
            return False
        if value != values[i] and values[i] != <PyObject*>_any:
            return False
    attributes.version = version
    return True


cdef bint _is_by_jax(object function) except -1:
    return (
        type(function) is FunctionType
        and str(function.__globals__.get("__name__")).startswith("jax.")
    )


cdef Implementation implementation_of(object prim) except *:
    impl = vars(prim).get("impl")
    if _is_by_jax(impl):
        return BY_JAX
    if type(impl) is not partial or impl.keywords or len(impl.args) != 1:
        return BY_OTHERS
    if impl.args[0] is not prim:
        return BY_OTHERS
    if impl.func is _apply_primitive:
        return BY_ONE_FUNCTION
    return BY_JAX if _is_by_jax(impl.func) else BY_OTHERS


cdef bint is_ordinary(object prim) except -1:
    cdef dict own
    if type(prim) is not _primitive_type:
        return False
    own = vars(prim)
    for name in _false_only:
        if own.get(name, False) is not False:
            return False
    return True


cdef tuple _own_binds = (
    private.convert_bind_with_trace,
    None if private.stage_primitive is None
    else vars(private.stage_primitive).get("bind_with_trace"),
)


cdef bint binds_as_jax_has_it(object prim) except -1:
    own = vars(prim).get("bind_with_trace")
    return own is None or any([own is known for known in _own_binds])


cdef Attributes _stage_attributes = None
if private.HAVE_RULES and private.stage_primitive is not None:
    _stage_attributes = attributes_of(private.stage_primitive)


cdef int stage_is_untouched() except -1:
    return (
        is_untouched(numpy_rules)
        and has_attributes(private.stage_primitive, _stage_attributes)
    )


bind_rules = Rules(private.bind_rules)
numpy_rules = Rules([*private.bind_rules, *private.numpy_rules])
function_rules = Rules(
    [*private.bind_rules, *private.numpy_rules, *private.function_rules]
    if private.HAVE_REPLAY else []
)
placement_rules = Rules(private.placement_rules)
late_rules = Rules([])


def watch_late(list modules) -> None:
    """Watch modules that JAX has just imported, beside those that are watched."""
    known = [place for _, place in late_rules.watched]
    _watch_more(late_rules, [module for module in modules if module not in known])


def look_at_all() -> None:
    """Compare everything that is watched now, so that no call has to."""
    for rules in (bind_rules, numpy_rules, function_rules, placement_rules, late_rules):
        look_again(rules)
