"""`jit`: plans in front of jaxlib's C++ dispatch.

The reference's own jitted function stays inside and gets every call that no plan fits. Its plans
are made by a `Recorder` (`_jit_record`), which stands in for one function of it.
"""

import weakref

from cpython.exc cimport PyErr_Clear
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyTypeObject
from libc.string cimport memcpy

from jaxmarshal._call cimport Call, StaticRule, describe, try_plans
from jaxmarshal._classify cimport Py_TYPE
from jaxmarshal._context cimport Context, on_forget
from jaxmarshal cimport _tape
from jaxmarshal._jit_context cimport jit_context
from jaxmarshal._jit_record cimport JitPlans, Recorder
from jaxmarshal._method cimport (
    PyObject_Vectorcall, PyVectorcall_NARGS, jm_use_vectorcall, make_method
)
from jaxmarshal._stats cimport (
    DELETED, GUARD, NOT_RECORDED, count_miss, entries, entry_number
)

from jaxmarshal import _reference

cdef extern from *:
    PyObject* PyErr_Occurred() noexcept
    object PyMethod_New(object function, object self)
    Py_ssize_t PyTuple_GET_SIZE(PyObject* items) noexcept

# `try_plans` as its caller sees it; see `_errors`.
ctypedef PyObject* (*try_function)(JitPlans, Context, Call*, int*) noexcept

ctypedef int (*note_function)(object, PyObject**, Py_ssize_t, PyObject*) noexcept

cdef enum:
    _BY_JIT = 1
    _BY_PRIMITIVES = 2

BY_JIT, BY_PRIMITIVES = _BY_JIT, _BY_PRIMITIVES

cdef enum:
    SOME_MISSES = 4        # in a row; then calls go past the plans for a while
    MOST_SKIPPED = 63      # calls

cdef object _reference_type = _reference.PjitFunction
cdef object _cpp_pjit = _reference.cpp_pjit
cdef object _reference_jit = _reference.jit
cdef object _reference_eval_shape = _reference.eval_shape
cdef int _entry = entry_number("jit")
cdef object _all_plans = weakref.WeakSet()
cdef int _installed = 0    # BY_JIT, BY_PRIMITIVES


# --- Calling -------------------------------------------------------------------------------------

cdef int _nothing_fitted(JitPlans plans, int reason) noexcept:
    """Calls that no plan fits, one after the other, go past the plans for a while."""
    if reason == GUARD or reason == DELETED:
        return 0    # a plan fitted, and something else was in the way
    plans.missed += 1
    if plans.missed > SOME_MISSES:
        plans.missed = min(plans.missed, SOME_MISSES + 10)
        plans.skip = min(1 << (plans.missed - SOME_MISSES), MOST_SKIPPED)
        plans.refusal = reason
    return 0


cdef inline PyObject* _noted(
    PyObject* self, PyObject** args, size_t nargsf, PyObject* names, PyObject* result
) noexcept:
    """The result, after a tape that is being written has noted it."""
    if _tape.current is not None and result != NULL:
        if names != NULL or (<note_function>_tape.note)(
            <object>self, args, PyVectorcall_NARGS(nargsf), result
        ):
            PyErr_Clear()
            _tape.current.broken = True
    return result


# Without a check for errors: the tracebacks of what goes wrong inside are the reference's.
cdef PyObject* _call_inner(
    PyObject* self, PyObject** args, size_t nargsf, PyObject* names
) noexcept:
    cdef PyObject* result = PyObject_Vectorcall(
        <PyObject*>(<PjitFunction>self).inner, args, nargsf, names
    )
    return result if _tape.current is None else _noted(self, args, nargsf, names, result)


cdef PyObject* _call(
    PyObject* self, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    cdef JitPlans plans = (<PjitFunction>self).plans
    cdef Context context
    cdef Call call
    cdef PyObject* result
    cdef int reason
    if (<PjitFunction>self).by_install and not (<PjitFunction>self).by_install & _installed:
        return PyObject_Vectorcall(<PyObject*>(<PjitFunction>self).inner, args, nargsf, names)
    if plans.skip:
        plans.skip -= 1
        entries[_entry].misses[plans.refusal] += 1
        return _call_inner(self, args, nargsf, names)
    reason = NOT_RECORDED
    context = jit_context(&reason) if plans.plans else None
    if context is not None:
        describe(&call, args, PyVectorcall_NARGS(nargsf), names)
        result = (<try_function>try_plans)(plans, context, &call, &reason)
        if result != NULL:
            entries[_entry].hits += 1
            plans.missed = 0
            return _noted(self, args, nargsf, names, result)
        if PyErr_Occurred() != NULL:
            return NULL
        _nothing_fitted(plans, reason)
    count_miss(_entry, reason)
    return _call_inner(self, args, nargsf, names)


# --- Sharing and dropping plans ------------------------------------------------------------------

# As in jaxlib, jitted functions of one function with the same options share what was compiled.
cdef dict _shared = {}    # id of a function -> (weak reference to it, [(options, JitPlans)])
# One of JAX's own caches of jaxlib -> ours, which the Recorders see filled.
cdef dict _caches = {}


cdef JitPlans _plans_for(dict state):
    """The plans of the jitted functions with this state, as `__getstate__` gives it."""
    cdef JitPlans plans
    rule = None
    if state["static_argnums"] or state["static_argnames"]:
        rule = StaticRule(state["static_argnums"], state["static_argnames"])
    plans = JitPlans(rule)
    _all_plans.add(plans)
    function = state.get("fun")
    options = (
        state["global_cache_key"], state["cache"], tuple(state["static_argnums"]),
        tuple(state["static_argnames"]),
    )
    key = id(function)
    try:
        _, known = _shared.setdefault(
            key, (weakref.ref(function, lambda _: _shared.pop(key, None)), [])
        )
    except TypeError:    # cannot be referred to weakly: then nothing is shared
        return plans
    for other, found in known:
        if other[1] is options[1] and other == options:
            return found
    known.append((options, plans))
    return plans


def _forget() -> None:
    """Drop every plan, and have jaxlib ask the Recorders again."""
    for item in list(_all_plans):
        _clear(<JitPlans>item)
    _shared.clear()    # as jaxlib's caches forget which functions share them
    for cache in _caches.values():
        cache.clear()


cdef int _clear(JitPlans plans) except -1:
    plans.plans = []
    plans.missed = plans.skip = plans.leave = plans.failures = 0
    return 0


on_forget(_forget)


# --- The function --------------------------------------------------------------------------------

cdef frozenset _own = frozenset((
    "__call__", "__class_getitem__", "__eq__", "__ne__", "__hash__", "__get__", "__reduce__",
    "__reduce_ex__", "__getstate__", "clear_cache", "_clear_cache",
))


cdef class PjitFunction:
    """A jitted function of the reference with plans in front of it.

    It has the attributes of the function it holds, and is an instance of its class.
    """

    def __cinit__(self, original):
        state = original.__getstate__()
        self.vectorcall = <vectorcallfunc>_call
        self.plans = _plans_for(state)
        self.recorder = Recorder(state["cache_miss"], self.plans)
        state["cache_miss"] = self.recorder
        state["cache"] = _cache_beside(state["cache"])
        self.inner = _reference_type.__new__(_reference_type)
        self.inner.__setstate__(state)
        vars(self.inner).update(vars(original))

    def __call__(self, *args, **kwargs):
        return self(*args, **kwargs)    # by `vectorcall`; this is for whoever asks for `__call__`

    def __getattribute__(self, name):
        if name in _own:
            return object.__getattribute__(self, name)
        return getattr(self.inner, name)

    def __setattr__(self, name, value):
        setattr(self.inner, name, value)

    def __delattr__(self, name):
        delattr(self.inner, name)

    def __dir__(self):
        return dir(self.inner)

    def __get__(self, instance, owner):
        return self if instance is None else PyMethod_New(self, instance)

    def __repr__(self):
        return repr(self.inner)

    def __reduce_ex__(self, protocol):
        return _plain(self).__reduce_ex__(protocol)

    def __reduce__(self):
        return _plain(self).__reduce__()

    def __getstate__(self):
        return _plain(self).__getstate__()

    def _clear_cache(self):
        _clear(self.plans)
        self.inner._clear_cache()
        _plain(self)._clear_cache()

    def clear_cache(self):
        _clear(self.plans)
        self.inner.clear_cache()
        # Functions that are not accelerated share it with each other.
        _plain(self)._clear_cache()

    # Found by whoever looks at the type alone.
    @property
    def lower(self):
        """See `jax.stages.Wrapped.lower`."""

    @property
    def trace(self):
        """See `jax.stages.Wrapped.trace`."""

    @property
    def eval_shape(self):
        """See `jax.eval_shape`."""


cdef object _plain(PjitFunction function):
    """The reference's function as it would be without jaxmarshal."""
    state = function.inner.__getstate__()
    state["cache_miss"] = function.recorder.original
    for theirs, ours in _caches.items():
        if ours is state["cache"]:
            state["cache"] = theirs
    plain = _reference_type.__new__(_reference_type)
    plain.__setstate__(state)
    vars(plain).update(vars(function.inner))
    return plain


cdef object _cache_beside(object cache):
    """For one of JAX's global caches of jaxlib a cache of ours, and otherwise the cache itself."""
    if cache not in _reference.jit_caches:
        return cache
    found = _caches.get(cache)
    if found is None:
        found = _caches.setdefault(cache, type(cache)(cache.capacity()))
    return found


jm_use_vectorcall(
    <PyTypeObject*>PjitFunction, <Py_ssize_t><void*>&(<PjitFunction><void*>NULL).vectorcall,
    False,
)


# --- Entry points --------------------------------------------------------------------------------

def accelerate(function, int by_install=0):
    """The accelerated function for one of the reference's; anything else as it is.

    One that is made because jaxmarshal is installed (BY_JIT, BY_PRIMITIVES: which entry point it
    was) is the reference's again when it no longer is.
    """
    cdef PjitFunction accelerated
    if type(function) is not _reference_type:
        return function
    accelerated = PjitFunction(function)
    accelerated.by_install = by_install
    return accelerated


def use_installed(bint jit, bint primitives):
    """Say which functions that were made because jaxmarshal is installed may use their plans."""
    global _installed
    _installed = (_BY_JIT if jit else 0) | (_BY_PRIMITIVES if primitives else 0)


def cpp_pjit(*args, **kwargs):
    """`jax._src.pjit._cpp_pjit`: the jitted function for a function and its parsed options."""
    return accelerate(_cpp_pjit(*args, **kwargs), _BY_JIT)


def jit(*args, **kwargs):
    """`jax.jit`."""
    made = _reference_jit(*args, **kwargs)
    return _make_own(made) if args else lambda fun: _make_own(made(fun))


cdef object _make_own(object function):
    """The accelerated function for one that `jax.jit` made, whether it is installed or not."""
    made = accelerate(function)
    if type(made) is PjitFunction:
        (<PjitFunction>made).by_install = 0
    return made


cdef PyObject* _eval_shape(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """`jax.eval_shape(fun, *args, **kwargs)`, which looks whether `fun` is the reference's type."""
    cdef Py_ssize_t n = PyVectorcall_NARGS(nargsf)
    cdef Py_ssize_t count = n if names == NULL else n + PyTuple_GET_SIZE(names)
    cdef PyObject** copied
    cdef PyObject* result
    if n == 0 or Py_TYPE(args[0]) is not <PyTypeObject*>PjitFunction:
        return PyObject_Vectorcall(<PyObject*>_reference_eval_shape, args, nargsf, names)
    copied = <PyObject**>PyMem_Malloc(count * sizeof(PyObject*))
    if copied == NULL:
        raise MemoryError()
    memcpy(copied, args, count * sizeof(PyObject*))
    copied[0] = <PyObject*>(<PjitFunction>args[0]).inner
    result = PyObject_Vectorcall(<PyObject*>_reference_eval_shape, copied, n, names)
    PyMem_Free(copied)
    return result


eval_shape = make_method(<vectorcallfunc>_eval_shape, _reference_eval_shape)


def uses_plans(PjitFunction function) -> bool:
    """Not if it was made because jaxmarshal was installed, and is no longer."""
    return _installed or not function.by_install


def is_jitted(function) -> bool:
    """Is it one of the functions that `jit` makes here?"""
    return type(function) is PjitFunction
