"""`jit`: plans in front of jaxlib's C++ dispatch, in the reference's very objects.

jaxlib's jitted functions are vectorcall objects: each holds the pointer it is called by. An
accelerated function is the same object with our pointer there. It tries the function's plans, and
hands every call that none fits to the pointer that jaxlib had put there (`jit_recorder`). Nothing
else of the object is changed, and `release` puts its pointer back.
"""

import atexit
import weakref

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF

from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.entries.all_jitted cimport all_functions
from jaxmarshal._core.entries.jit_recorder cimport call_and_record, call_and_record_function
from jaxmarshal._core.plans.backoff cimport is_left
from jaxmarshal._core.plans.call cimport Call, describe_arguments, try_plans, try_plans_function
from jaxmarshal._core.plans.jit_configuration cimport jit_context
from jaxmarshal._core.plans.jit_plans cimport (
    JitPlans, accelerated, clear_plans, forget_functions, forget_plans, give_shared_plans,
    is_accelerated, jit_info_of, plans_of_jitted, static_rule_of
)
from jaxmarshal._core.plans.plan cimport it_fitted, name_counts, nothing_fitted
from jaxmarshal._core.replay cimport tapes
from jaxmarshal._core.values.array_words cimport words_are_vouched_for
from jaxmarshal._core.values.capi cimport PyErr_Occurred, jm_tuple_items
from jaxmarshal._core.values.errors cimport propagate
from jaxmarshal._core.values.methods cimport (
    PyObject_Vectorcall, PyVectorcall_NARGS, make_method, vectorcallfunc
)
from jaxmarshal._reports.counting cimport (
    HOST_LEAVES, NOT_RECORDED, OBJECT_LAYOUT, Entry, answer, count_another_miss_of, count_hit_of,
    count_miss_of, entry_number, is_asked
)

from jaxmarshal._core.context.bypassed import put_in_place_of
from jaxmarshal._core.entries import jit_recorder
from jaxmarshal._jax import private
from jaxmarshal._reports import definitions

cdef extern from "jaxmarshal/jitted.h":
    vectorcallfunc* jm_vectorcall_of(PyObject* function) noexcept

# As their callers see them; see `errors`.
ctypedef PyObject* (*call_function)(PyObject*, PyObject**, size_t, PyObject*) noexcept
ctypedef PyObject* (*kept_error_function)(Call*, PyObject*) noexcept
ctypedef PyObject* (*known_function)(
    PyObject*, PyObject**, size_t, PyObject*, Context
) noexcept

cdef enum:    # for whom a function is accelerated
    _BY_JIT = 1           # the entry point `jit`
    _BY_PRIMITIVES = 2    # the entry point `xla_primitive_callable`
    _OWN = 4              # `jaxmarshal.jit` made it
    _BY_FRONTS = 8        # a front of a library that wraps `jit`

BY_JIT, BY_PRIMITIVES, BY_FRONTS = _BY_JIT, _BY_PRIMITIVES, _BY_FRONTS

cdef enum:
    SOME_MISSES = 4    # in a row; then calls go past the plans for a while

cdef int _entry = entry_number("jit")
cdef object _type = private.PjitFunction
cdef object _cpp_pjit = private.cpp_pjit
cdef object _reference_jit = private.jit
cdef object _clear_method = None if _type is None else vars(_type).get("_clear_cache")
cdef bint _active = private.HAVE_JIT
cdef vectorcallfunc _reference_call = NULL    # what every such function was called by
cdef int _installed = 0        # BY_JIT, BY_PRIMITIVES
cdef object _mark = None       # see `_ask_mark`
cdef bint _is_listening = False
cdef dict _excluded = {}       # id of a function -> weak reference to it


# --- Calling -------------------------------------------------------------------------------------

cdef inline bint _is_left(JitPlans plans) noexcept:
    """Is this call left to the reference before anything is looked at?"""
    return is_left(&plans.skip) or (not plans.plans and is_left(&plans.leave))


cdef inline PyObject* _noted(
    PyObject* self, PyObject** args, size_t nargsf, PyObject* names, PyObject* result
) noexcept:
    """The result, after a tape that is being written has noted it."""
    if tapes.current is not None and result != NULL:
        tapes.note(<object>self, args, PyVectorcall_NARGS(nargsf), names, result)
    return result


# Without a check for errors: the tracebacks of what goes wrong inside are the reference's.
cdef PyObject* _call_reference(
    PyObject* self, PyObject** args, size_t nargsf, PyObject* names
) noexcept:
    cdef PyObject* result = _reference_call(self, args, nargsf, names)
    return result if tapes.current is None else _noted(self, args, nargsf, names, result)


cdef inline Entry* _counts(PyObject* self, JitPlans plans) except NULL:
    """Where calls of the function count by its name, which its first miss finds out."""
    if not plans.is_named:
        name_counts(plans, "jit", definitions.of_jitted, <object>self)
    return plans.counts


cdef inline PyObject* _fitting(
    PyObject* self, JitPlans plans, Context context, PyObject** args, size_t nargsf,
    PyObject* names, Call* call, int* reason
) except? NULL:
    """The result by a plan that fits; or NULL, with an error or without one."""
    cdef PyObject* result
    describe_arguments(call, args, PyVectorcall_NARGS(nargsf), names, jit_context)
    call.entry = _entry
    call.asked.keeps_error = not is_asked()
    reason[0] = NOT_RECORDED
    if not plans.plans:
        return NULL
    result = (<try_plans_function>try_plans)(plans, plans.rule, context, call, reason)
    if result == NULL:
        return NULL
    count_hit_of(_entry, plans.counts)
    it_fitted(plans)
    return _noted(self, args, nargsf, names, result)


cdef PyObject* _kept_error(Call* call, PyObject* result) except? NULL:
    """Raise the error of a static argument, unless the reference has met one, too."""
    error = <object>call.asked.error
    Py_DECREF(error)
    if result == NULL:
        return NULL
    Py_DECREF(<object>result)
    raise error


# Without a check for errors: the tracebacks of the reference's are its own.
cdef inline PyObject* _or_kept_error(Call* call, PyObject* result) noexcept:
    return result if call.asked.error == NULL else (<kept_error_function>_kept_error)(call, result)


cdef PyObject* _call(
    PyObject* self, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    cdef JitPlans plans = plans_of_jitted(<object>self)
    cdef Context context
    cdef Call call
    cdef PyObject* result
    cdef int reason, refusal
    if plans is None and is_asked():    # before it is accelerated
        plans = JitPlans(static_rule_of(<object>self))
    if plans is None:
        return _reference_call(self, args, nargsf, names)
    if not words_are_vouched_for():
        count_miss_of(_entry, _counts(self, plans), OBJECT_LAYOUT)
        return _call_reference(self, args, nargsf, names)
    if _is_left(plans):
        if is_asked():
            answer(_entry, plans.refusal)
        count_another_miss_of(_entry, plans.counts, plans.refusal)
        return _call_reference(self, args, nargsf, names)
    context = jit_context(&reason)
    if context is None:
        count_miss_of(_entry, _counts(self, plans), reason)
        return _call_reference(self, args, nargsf, names)
    result = _fitting(self, plans, context, args, nargsf, names, &call, &reason)
    if result != NULL:
        return result
    if PyErr_Occurred() != NULL:
        return NULL
    if call.asked.error != NULL:
        count_miss_of(_entry, plans.counts, reason)
        return _or_kept_error(&call, _call_reference(self, args, nargsf, names))
    refusal = plans.refusal
    if plans.plans and not is_asked():
        nothing_fitted(plans, reason, SOME_MISSES)
    if reason == HOST_LEAVES:    # there is a plan, for scalars that stay the same
        count_miss_of(_entry, plans.counts, reason)
        return _call_reference(self, args, nargsf, names)
    if plans.leave:
        if reason == NOT_RECORDED:    # the last attempt has found out why
            reason = plans.refusal = refusal
        count_miss_of(_entry, plans.counts, reason)
        plans.leave -= 1
        return _call_reference(self, args, nargsf, names)
    _counts(self, plans)
    _note_what_is_kept(True)
    result = (<call_and_record_function>call_and_record)(
        self, _reference_call, plans, context, &call, _entry, reason
    )
    return _or_kept_error(&call, _noted(self, args, nargsf, names, result))


cdef PyObject* _call_in_context(
    PyObject* self, PyObject** args, size_t nargsf, PyObject* names, Context context
) except? NULL:
    """The same for who has just found out the context: nothing of the program's ran since."""
    cdef JitPlans plans = plans_of_jitted(<object>self)
    cdef Call call
    cdef PyObject* result
    cdef int reason
    if plans is not None and not plans.skip and not is_asked() and words_are_vouched_for():
        result = _fitting(self, plans, context, args, nargsf, names, &call, &reason)
        if result != NULL or PyErr_Occurred() != NULL:
            return result
        if call.asked.error != NULL:
            return _or_kept_error(&call, tapes.accelerated_call(self, args, nargsf, names))
    return _call(self, args, nargsf, names)


tapes.accelerated_call = <vectorcallfunc>_call
tapes.reference_call = <vectorcallfunc>_call_reference
tapes.call_in_context = <known_function>_call_in_context


def call_jitted(function, args, kwargs):
    """Call a jitted function as an accelerated one is called, whether it is one or not."""
    cdef tuple values = (*args, *kwargs.values()), names = tuple(kwargs)
    cdef PyObject* result = (<call_function>_call)(
        <PyObject*>function, jm_tuple_items(values), len(args),
        <PyObject*>names if names else NULL,
    )
    if result == NULL:
        propagate()
    made = <object>result
    Py_DECREF(made)
    return made


# --- Accelerating objects ------------------------------------------------------------------------

cdef int _clear_plans(PyObject** args, size_t nargsf) except -1:
    """Clear the plans of the function that is the only argument, if it is one."""
    if PyVectorcall_NARGS(nargsf) == 1 and type(<object>args[0]) is _type:
        clear_plans(<object>args[0])
    return 0


cdef PyObject* _clear_cache(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """`PjitFunction._clear_cache(self)`, to which `clear_cache` comes too.

    Plans go first: where that fails, as at the end of the stack, nothing is cleared. What another
    thread recorded meanwhile goes afterwards.
    """
    cdef PyObject* result
    _clear_plans(args, nargsf)
    result = PyObject_Vectorcall(<PyObject*>_clear_method, args, nargsf, names)
    if result != NULL:
        _clear_plans(args, nargsf)
    return result


clear_cache = make_method(<vectorcallfunc>_clear_cache, _clear_method)


put_in_place_of(private.fastpath_data, jit_recorder.note_fastpath_data)


def accelerate(function, int by, bint is_new=False):
    """Have a jitted function of the reference try plans. Anything else stays as it is.

    A new one shares the plans of those with which jaxlib has it share what was compiled.
    """
    global _reference_call
    cdef vectorcallfunc* pointer
    if not _active or type(function) is not _type or jit_info_of(function) is None:
        return function
    excluded = _excluded.get(id(function))
    if excluded is not None and excluded() is function:
        return function
    if is_accelerated(function):
        accelerated[id(function)][1] |= by
        return function
    pointer = jm_vectorcall_of(<PyObject*>function)
    if _reference_call == NULL:
        _reference_call = pointer[0]
    if pointer[0] != _reference_call:
        return function    # somebody else's
    key = id(function)
    # At the end of the interpreter the callback may find no name of this module.
    forget = _forget_function
    accelerated[key] = [weakref.ref(function, lambda _: forget(key)), by]
    try:
        if not _is_listening:
            _listen()
        if is_new:
            give_shared_plans(function)
    except BaseException:    # Ctrl-C, or the end of the stack: plans that nothing clears are none
        _forget_function(key)
        raise
    pointer[0] = <vectorcallfunc>_call
    return function


cdef int _release(object function) except -1:
    """Have a function be called as the reference made it."""
    jm_vectorcall_of(<PyObject*>function)[0] = _reference_call
    _forget_function(id(function))
    return 0


def exclude(function):
    """Have a jitted function stay as the reference made it, for as long as it lives."""
    key = id(function)
    _excluded[key] = weakref.ref(function, lambda _: _excluded.pop(key, None))
    if is_accelerated(function):
        _release(function)


def _forget_function(key: int) -> None:
    accelerated.pop(key, None)
    if not accelerated and getattr(private, "pjit", None) is not None:
        _stop_listening()    # unless the interpreter ends


cdef int _listen() except -1:
    """While any function is accelerated: note what jaxlib keeps, and hear what clears it."""
    global _is_listening
    if _ask_mark() is not _mark:
        forget_plans()
    _type._clear_cache = clear_cache
    _note_what_is_kept(True)
    _is_listening = True
    return 0


cdef int _stop_listening() except -1:
    global _is_listening, _mark
    if not _is_listening:    # what was cleared meanwhile is still to be found out
        return 0
    mark = _ask_mark()    # runs code: functions may be made meanwhile
    if accelerated:
        return 0
    _is_listening = False
    _mark = mark
    _type._clear_cache = _clear_method
    return _note_what_is_kept(False)


cdef int _note_what_is_kept(bint on) except -1:
    """Note what jaxlib keeps of calls, or no longer. Somebody else's function in its place stays.

    One that was there for a while, as mocks are, may have left the reference's own behind.
    """
    pjit = private.pjit
    if on and pjit._get_fastpath_data is private.fastpath_data:
        pjit._get_fastpath_data = jit_recorder.note_fastpath_data
    elif not on and pjit._get_fastpath_data is jit_recorder.note_fastpath_data:
        pjit._get_fastpath_data = private.fastpath_data
    return 0


cdef object _ask_mark():
    """An object that JAX keeps until the next `clear_cache()` of any jitted function.

    While no function is accelerated nobody hears of those. If the object is still there afterwards,
    there was none.
    """
    return private.infer_params_cache(_ask_mark_of, None, None, (), None) if _active else None


def _ask_mark_of() -> None:
    """What the mark is kept for."""


def use_installed(bint jit, bint primitives, bint fronts=False):
    """Accelerate the functions that there are for these entry points, and release the others."""
    global _installed
    cdef int before = _installed
    _installed = (
        (_BY_JIT if jit else 0) | (_BY_PRIMITIVES if primitives else 0)
        | (_BY_FRONTS if fronts else 0)
    )
    if _installed & ~before & _BY_JIT:
        try:
            for function in all_functions():
                accelerate(function, _BY_JIT)
        except BaseException:    # Ctrl-C: the next time
            _installed = before
            raise
    for entry in list(accelerated.values()):
        entry[1] &= _installed | _OWN
        function = entry[0]()
        if not entry[1] and function is not None:
            _release(function)


@atexit.register
def _release_all() -> None:
    """Nothing of ours is called while Python takes itself apart."""
    for entry in list(accelerated.values()):
        function = entry[0]()
        if function is not None:
            _release(function)
    forget_functions()


# --- Entry points --------------------------------------------------------------------------------

def cpp_pjit(*args, **kwargs):
    """`jax._src.pjit._cpp_pjit`: the jitted function for a function and its parsed options."""
    function = _cpp_pjit(*args, **kwargs)
    return accelerate(function, _BY_JIT, True) if _installed & _BY_JIT else function


def of_primitive(function):
    """The jitted function of a primitive, accelerated where that entry point is installed."""
    return accelerate(function, _BY_PRIMITIVES) if _installed & _BY_PRIMITIVES else function


def jit(*args, **kwargs):
    """`jax.jit`."""
    made = _reference_jit(*args, **kwargs)
    return accelerate(made, _OWN, True) if args else lambda fun: accelerate(made(fun), _OWN, True)


def uses_plans(function) -> bool:
    """Is it a jitted function that tries its plans?"""
    return is_accelerated(function)


def is_jitted(function) -> bool:
    """Is it a jitted function?"""
    return _type is not None and type(function) is _type
