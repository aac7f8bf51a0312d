"""The configuration a call runs under, recognised by comparing pointers."""

from cpython.object cimport PyObject
from libc.string cimport memcmp

from jaxmarshal._core.context.bypassed cimport is_untouched, placement_rules
from jaxmarshal._core.values.capi cimport jm_tuple_items
from jaxmarshal._core.values.forgetting cimport forget_all
from jaxmarshal._reports.counting cimport (
    CONTEXT, HIT, LISTENER, NO_BACKEND, PROFILER, REPLACED, TRACE
)

from jaxmarshal._jax import private

cdef extern from "jaxmarshal/config_state.h":
    ctypedef int (*traverseproc)(PyObject*, void*, void*) noexcept
    bint jm_state_is_everywhere(traverseproc traverse, object state, object expected) noexcept
    bint jm_state_is_in_threads(traverseproc traverse, object state, object expected) noexcept
    ctypedef struct PyTypeObject:
        traverseproc tp_traverse

cdef extern from "jaxmarshal/containers.h":
    PyObject* jm_dict_value(object mapping, object name, Py_ssize_t* position) except? NULL

cdef extern from *:
    object PyObject_CallNoArgs(object callable)

cdef enum:
    KEPT = 16    # contexts remembered; a program that uses more records again

# JAX's objects, bound at import.
cdef object _trace_context = private.trace_context
cdef object _profiling = private.profiling
cdef object _post_hook = private.post_hook
cdef object _debug_nans = private.debug_nans
cdef object _debug_infs = private.debug_infs
cdef object _current_trace = private.current_trace
cdef object _no_trace = private.no_trace
cdef bint _holds_traces = private.HOLDS_TRACES
cdef object _host_guard = private.host_to_device_guard
cdef object _device_guard = private.device_to_device_guard
cdef object _fetch_guard = private.device_to_host_guard
cdef dict _bridge = vars(private.xla_bridge) if private.HAVE_CONTEXT else {}
cdef dict _util = vars(private.util) if private.HAVE_CONTEXT else {}
cdef Py_ssize_t _backend_position = 0
cdef Py_ssize_t _listener_position = 0

# How the class of JAX's states reports the values it holds, or NULL where it does not.
cdef traverseproc _traverse = NULL
if private.ConfigState is not None:
    _traverse = (<PyTypeObject*>private.ConfigState).tp_traverse

cdef Context _last = None    # the context of the previous call
cdef list _contexts = []     # the most recently used first


cdef class Context:
    """One configuration, and what was recorded under it."""

    def __cinit__(self, tuple words, backend, bint plain, bint distributed):
        self.words = words
        self.backend = backend
        self.plain = plain
        self.distributed = distributed
        self.all_for_jit = []


cdef inline bint _same_words(Context context, tuple words):
    return (
        len(context.words) == len(words)
        and memcmp(
            jm_tuple_items(context.words), jm_tuple_items(words), len(words) * sizeof(void*)
        ) == 0
    )


cdef bint _several_processes() except -1:
    """Do several processes take part, on whichever platform?"""
    if private.process_count() > 1:
        return True
    return any([private.process_count(name) > 1 for name in _bridge["_backends"]])


cdef Context _find(tuple words, backend):
    """The remembered context that equals `words`, or a new one."""
    global _last
    for context in _contexts:
        if _same_words(<Context>context, words):
            found = <Context>context
            break
    else:
        for context in _contexts:
            if _equal((<Context>context).words, words):
                found = <Context>context
                found.words = words    # adopt the new pointers
                break
        else:
            found = Context(
                words, backend,
                # Where executables are profiled to be compiled anew, JAX counts their runs.
                private.trace_state_clean() and not private.enable_pgle.value,
                _several_processes(),
            )
    if found in _contexts:
        _contexts.remove(found)
    _contexts.insert(0, found)
    del _contexts[KEPT:]
    _last = found
    return found


cdef bint _equal(tuple a, tuple b) except -1:
    """Equality of two trace contexts; states that cannot be compared differ."""
    try:
        return a == b
    except Exception:
        return False


cdef bint state_is(object state, object expected) except -1:
    if _traverse != NULL and jm_state_is_everywhere(_traverse, state, expected):
        return True
    return state.value is expected


cdef bint _is_tracing() except -1:
    if _holds_traces:
        return not state_is(_current_trace, _no_trace)
    # Weak references; and None in a thread that has not traced yet.
    if _traverse != NULL and jm_state_is_in_threads(_traverse, _current_trace, _no_trace):
        return False
    value = _current_trace.value
    if value is not None:
        return value is not _no_trace
    return private.trace_holder.trace is not private.eval_trace


cdef bint is_profiling() except -1:
    return PyObject_CallNoArgs(_profiling) is not False


cdef tuple _words(int* reason):
    """The current trace context, or None while a trace or a profile is in progress."""
    if _is_tracing():
        reason[0] = TRACE
        return None
    if is_profiling():
        reason[0] = PROFILER
        return None
    return <tuple>PyObject_CallNoArgs(_trace_context)


cdef Context _plain(Context context, int* reason):
    reason[0] = HIT if context.plain else <int>CONTEXT
    return context if context.plain else None


cdef Context current_context(int* reason):
    cdef PyObject* backend
    cdef PyObject* listener
    cdef tuple words
    cdef Context context = _last
    backend = jm_dict_value(_bridge, "_default_backend", &_backend_position)
    if backend == NULL or backend == <PyObject*>None:
        reason[0] = NO_BACKEND
        return None
    listener = jm_dict_value(_util, "test_event_listener", &_listener_position)
    if listener == NULL or listener != <PyObject*>None:
        reason[0] = LISTENER
        return None
    if not is_untouched(placement_rules):
        reason[0] = REPLACED
        return None
    words = _words(reason)
    if words is None:
        return None
    if context is None or <PyObject*>context.backend != backend:
        if context is not None:
            forget()
        context = _find(words, <object>backend)
    elif not _same_words(context, words):
        context = _find(words, <object>backend)
    return _plain(context, reason)


cdef Context running_context(int* reason):
    cdef Context context = _last
    cdef tuple words
    if context is None:
        return current_context(reason)
    words = _words(reason)
    if words is None:
        return None
    if not _same_words(context, words):
        return current_context(reason)
    return _plain(context, reason)


cdef bint is_current(Context context) except -1:
    cdef int reason
    cdef Context now = current_context(&reason)
    return now is not None and (now is context or context in now.all_for_jit)


cdef inline bint _allows(object guard) except -1:
    if _traverse != NULL and jm_state_is_everywhere(_traverse, guard, None):
        return True
    # Where this thread has no level, jaxlib takes that of all threads.
    level = guard.value
    return (guard.get_global() or "allow") == "allow" if level is None else level == "allow"


cdef bint transfers_unguarded(bint host, bint device) except -1:
    """An array may be moved by way of the host, so that all guards are asked for it."""
    if not device:
        return not host or _allows(_host_guard)
    return _allows(_host_guard) and _allows(_device_guard) and _allows(_fetch_guard)


cdef bint fetches_unguarded() except -1:
    return _allows(_fetch_guard)


cdef bint results_are_checked() except -1:
    # A context that ended may have left this thread without the hook, and with the state set.
    return not (
        state_is(_post_hook, None) and state_is(_debug_nans, False)
        and state_is(_debug_infs, False)
    )


def forget() -> None:
    """Drop every recorded context and all that was recorded under it."""
    global _last
    _last = None
    _contexts.clear()
    forget_all()


class _Cache:
    """Lets `jax.clear_caches()` and `clear_backends()` drop what was recorded here too."""

    def cache_clear(self) -> None:
        forget()

    def cache_info(self) -> str:
        return f"contexts={len(_contexts)}"

    def cache_keys(self) -> list:
        return [(<Context>context).words for context in _contexts]


_cache = _Cache()    # JAX holds it weakly
if private.HAVE_CONTEXT:
    private.register_cache(_cache, "jaxmarshal")
