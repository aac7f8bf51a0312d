"""Plans of jitted functions, made of what jaxlib keeps of a call.

For a signature that it does not know, jaxlib calls the reference's Python function, which traces,
compiles, runs, and makes the data that jaxlib keeps for the next time
(`MeshExecutableFastpathData`). Those are noted on the way. A signature that jaxlib knows and no
plan was made of (the function was called before jaxmarshal was there, or under a profiler) goes to
that Python function once, directly, and only if JAX has its trace: nothing is traced again.
"""

import sys

cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from jaxmarshal._core.context.bypassed cimport bind_rules, is_untouched
from jaxmarshal._core.context.configuration cimport Context, transfers_unguarded
from jaxmarshal._core.entries.all_jitted cimport all_functions
from jaxmarshal._core.placement.records cimport is_ordinary_data
from jaxmarshal._core.plans.backoff cimport failed_again
from jaxmarshal._core.plans.call cimport Call, describe_call, keep_error
from jaxmarshal._core.plans cimport plan as plan_module
from jaxmarshal._core.plans.host_leaves cimport flatten_for_plan, is_better_in_cpp
from jaxmarshal._core.plans.intake cimport jm_guard
from jaxmarshal._core.plans.jit_configuration cimport jit_context
from jaxmarshal._core.plans.jit_plans cimport FREE_FAILURES, JitPlans, expect_more, jit_info_of
from jaxmarshal._core.plans.make cimport (
    complete_plan, draft_plan, record_host_arguments, reuse_host_arguments
)
from jaxmarshal._core.plans.plan cimport (
    Plan, most_plans, reason_of_miss, set_results, start_afresh, take_plan
)
from jaxmarshal._core.values.arguments cimport jm_slot, jm_table, jm_table_free, jm_table_init
from jaxmarshal._core.values.capi cimport (
    PyThread_get_thread_ident, PyTuple_GET_ITEM, PyTuple_GET_SIZE
)
from jaxmarshal._core.values.errors cimport is_of_program, propagate
from jaxmarshal._core.values.kinds cimport (
    JM_BOOL, JM_COMPLEX, JM_FLOAT, JM_INT, JM_NDARRAY, JM_NP_SCALAR, jm_kind_is_host
)
from jaxmarshal._core.values.live_objects cimport JM_DEBUG, counters
from jaxmarshal._core.values.methods cimport PyObject_Vectorcall, make_method, vectorcallfunc
from jaxmarshal._core.values.narrowing cimport narrows_silently, scalar_array
from jaxmarshal._core.values.static_values cimport StaticArgument
from jaxmarshal._core.values.trees cimport Structure, free_structure, init_structure
from jaxmarshal._reports.counting cimport (
    DELETED, EXECUTABLE, HIT, HOST_LEAVES, NOT_RECORDED, TREE, count_miss_of, enter, leave
)

import numpy as np

from jaxmarshal._jax import private

# As their callers see them; see `errors`.
ctypedef PyObject* (*ask_function)(object, Call*, Recording) noexcept
ctypedef PyObject* (*watch_function)(
    PyObject*, vectorcallfunc, PyObject**, size_t, PyObject*, Recording
) noexcept

cdef object _result_handler = private.result_handler
cdef object _fastpath_data = private.fastpath_data
cdef object _cache_miss_code = private.cache_miss_code
cdef object _infer_params = private.infer_params
cdef object _infer_params_cache = private.infer_params_cache
cdef object _no_tracing = private.no_tracing
cdef object _disable_jit = private.disable_jit
cdef object _get_frame = sys._getframe
cdef dict _recordings = {}    # number of a thread -> the Recording of its innermost such call


# A call of a jitted function that the reference performs.
cdef class Recording:
    cdef object jit_info     # of the function
    cdef Recording outer     # of the call on this thread during which it is made, or None
    cdef bint asked          # jaxlib called the reference's Python function
    cdef object data         # what jaxlib keeps of it then, or None
    cdef object signature    # of the call, see `_signature`
    cdef Context context     # of the call, when it came in


# --- Making plans --------------------------------------------------------------------------------

cdef Plan draft_jit_plan(
    JitPlans plans, Call* call, Context context, jm_table* table, int* reason
):
    cdef Structure structure
    cdef Plan plan
    init_structure(&structure, by_node=True)
    try:
        reason[0] = flatten_for_plan(
            call, plans.rule, &structure, table, plans.donated, True
        )
        if reason[0] and not (plans.takes_host and reason[0] == HOST_LEAVES):
            return None
        plan = draft_plan(context, table, reason)
        if plan is not None:
            describe_call(plan, call, plans.rule, &structure)
            plan.keeps_scalars = True
            plan.only_kept = not plans.takes_host and is_better_in_cpp(table, False)
            plan.only_reused = not plans.takes_host and is_better_in_cpp(table, True)
        return plan
    except Exception as error:
        reason[0] = TREE
        if is_of_program(error):
            if not call.asked.comparing:
                raise
            call.asked.comparing = False
            keep_error(call, error)
        return None
    finally:
        free_structure(&structure)


cdef bint _complete(Plan plan, jm_table* table, object data, int* reason) except -1:
    """Finish a plan with what jaxlib keeps. 0 with a reason."""
    reason[0] = EXECUTABLE
    if data is None or any([wanted is not None for wanted in data.in_device_local_layouts]):
        return False
    plan.fails_as_jit = True
    handlers = [
        _result_handler(aval, sharding, committed)
        for aval, sharding, committed in zip(
            data.out_avals, data.out_shardings, data.out_committed, strict=True
        )
    ]
    if not complete_plan(
        plan, table, data.xla_executable, handlers, list(data.kept_var_bitvec),
        list(data.in_shardings), list(data.const_args), reason
    ):
        return False
    if not set_results(plan, data.out_pytree_def):
        reason[0] = EXECUTABLE
        return False
    record_host_arguments(plan, table)
    reuse_host_arguments(plan, table)
    if plan.only_reused and not plan.reuses:
        reason[0] = HOST_LEAVES
        return False
    return True


cdef int _refuse(JitPlans plans, int reason) noexcept:
    """No plan could be made: attempts become rarer. A deleted argument says nothing of others."""
    plans.refusal = reason
    if reason != DELETED:
        plans.leave = failed_again(&plans.failures, FREE_FAILURES)
    return 0


cdef bint _is_news(JitPlans plans, object signature) except -1:
    """jaxlib has answered a call by itself: note that, for the next such call. 0 if it was noted.

    A signature stays here until a plan was kept of it; where there are too many, the oldest goes,
    and may come back.
    """
    if signature is None or signature in plans.known:
        return False
    while len(plans.known) >= most_plans:
        plans.known.pop(next(iter(plans.known)), None)
    plans.known[signature] = True
    start_afresh(plans)    # there may be many, one after the other
    return True


cdef int _keep(JitPlans plans, Plan plan, jm_table* table, Recording recording) except -1:
    """The reference has performed the call: keep its plan, or try again later."""
    cdef int reason = NOT_RECORDED
    cdef bint complete = False
    if not recording.asked and _is_news(plans, recording.signature):
        return 0    # the next such call asks JAX's Python function instead, if it may
    try:
        complete = recording.asked and _complete(plan, table, recording.data, &reason)
    except Exception:
        if JM_DEBUG:
            raise
    if not complete:
        return _refuse(plans, reason)
    plans.failures = 0
    start_afresh(plans)
    if recording.signature is not None:
        plans.known.pop(recording.signature, None)
    take_plan(plans, plan)
    return 0


# --- Calling the reference -----------------------------------------------------------------------

cdef int _note(object data) except -1:
    """The reference's Python function is about to return this to jaxlib."""
    cdef Recording recording
    cdef int reason
    frame = _get_frame()
    if frame.f_code is not _cache_miss_code:
        return 0
    known = frame.f_locals
    recording = _recordings.get(PyThread_get_thread_ident())
    if recording is not None and known["jit_info"] is recording.jit_info:
        # The user's code, which took nodes apart meanwhile, may have changed the configuration.
        recording.asked = jit_context(&reason) is recording.context
        recording.data = data
    elif data is not None:
        expect_more(known["fun"])
    return 0


cdef PyObject* _note_fastpath_data(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """`pjit._get_fastpath_data`, which the call on this thread sees that it belongs to."""
    cdef PyObject* data = PyObject_Vectorcall(<PyObject*>_fastpath_data, args, nargsf, names)
    if data != NULL:
        _note(<object>data)
    return data


note_fastpath_data = make_method(<vectorcallfunc>_note_fastpath_data, _fastpath_data)


cdef PyObject* _watch(
    PyObject* function, vectorcallfunc reference, PyObject** args, size_t nargsf, PyObject* names,
    Recording recording
) except? NULL:
    """Call jaxlib, and note what it keeps."""
    cdef PyObject* result
    cdef unsigned long thread = PyThread_get_thread_ident()
    recording.outer = _recordings.get(thread)
    _recordings[thread] = recording
    result = reference(function, args, nargsf, names)
    if recording.outer is None:
        _recordings.pop(thread, None)
    else:
        _recordings[thread] = recording.outer
    return result


cdef tuple _arguments(Call* call):
    """The arguments as a tuple and a dict."""
    cdef Py_ssize_t i
    args = tuple([<object>call.args[i] for i in range(call.n)])
    if call.names == NULL:
        return args, {}
    return args, {
        <object>PyTuple_GET_ITEM(call.names, i): <object>call.args[call.n + i]
        for i in range(PyTuple_GET_SIZE(call.names))
    }


cdef list _relatives_of(object function):
    """The other jitted functions with which jaxlib has this one share what was compiled."""
    cdef dict state = function.__getstate__()
    found = []
    for other in all_functions():
        if other is not function and vars(other).get("_fun") is state["fun"]:
            known = other.__getstate__()
            if known["cache"] is state["cache"] and (
                known["global_cache_key"] == state["global_cache_key"]
            ):
                found.append(other)
    return found


cdef bint _is_traced(object function, Call* call) except -1:
    """Does JAX have the program of this call, so that its Python function only has to run it?

    Any `clear_cache()` empties the cache of programs, but leaves jaxlib what other jits of the same
    function compiled. A trace made since may be another one: a program that is not there is no
    longer the one that jaxlib has.
    """
    args, kwargs = _arguments(call)
    for relative in [function, *_relatives_of(function)]:
        try:
            before = _infer_params_cache.cache_info().misses
            with _no_tracing(True):
                _infer_params(relative._fun, jit_info_of(relative), args, kwargs)
            if _infer_params_cache.cache_info().misses == before:
                return True
        except Exception:
            pass
    return False


cdef PyObject* _ask_directly(object function, Call* call, Recording recording) except? NULL:
    """Call the reference's Python function, for a signature that jaxlib knows."""
    cdef object ask = function._cache_miss
    cdef PyObject* returned = PyObject_Vectorcall(
        <PyObject*>ask, call.args, call.n, call.names
    )
    cdef PyObject* outs
    if returned == NULL:
        return NULL
    recording.asked = True
    recording.data = <object>PyTuple_GET_ITEM(returned, 1)
    outs = PyTuple_GET_ITEM(returned, 0)
    Py_INCREF(<object>outs)
    Py_DECREF(<object>returned)
    return outs


cdef bint _converts_silently(jm_slot* slot) except -1:
    """Does jaxlib's conversion of a host argument say as little as the reference's in Python?"""
    cdef object x = <object>slot.obj
    if slot.kind == JM_INT:
        return scalar_array(x, JM_INT, cnp.NPY_INT32) is not None
    if slot.kind == JM_FLOAT:
        return scalar_array(x, JM_FLOAT, cnp.NPY_FLOAT32) is not None
    if slot.kind == JM_COMPLEX:
        return scalar_array(x, JM_COMPLEX, cnp.NPY_COMPLEX64) is not None
    if slot.kind == JM_NDARRAY or slot.kind == JM_NP_SCALAR:
        return is_ordinary_data(x) and narrows_silently(np.asarray(x))
    return slot.kind == JM_BOOL or not jm_kind_is_host(slot.kind)


cdef tuple _signature(Plan plan, Call* call):
    """What is known of a call for which a plan was drafted; of static arguments, their hashes."""
    cdef Py_ssize_t i
    cdef jm_guard* guard
    cdef list leaves = []
    for i in range(plan.count):
        guard = &plan.guards[i]
        leaves.append((
            guard.kind, <object>guard.aval,
            None if guard.where == NULL else <object>guard.where, guard.committed,
        ))
    statics = tuple([(<StaticArgument>static).hash for static in plan.statics or ()])
    names = None if call.names == NULL else <object>call.names
    return (id(plan.context), call.n, names, statics, tuple(leaves))


cdef object _hashable(object signature):
    """The signature, or None if a part of it cannot be looked up."""
    try:
        hash(signature)
    except Exception:
        return None
    return signature


cdef bint _may_ask_directly(
    object function, JitPlans plans, object signature, Call* call, jm_table* table
) except -1:
    """May JAX's Python function perform a call that jaxlib knows, with nothing different?"""
    cdef Py_ssize_t i
    if not plans.known.get(signature, False) or not function._cache_size():
        return False
    if not transfers_unguarded(True, True) or not is_untouched(bind_rules):
        return False
    for i in range(table.count):
        if not _converts_silently(&table.slots[i]):
            return False
    plans.known[signature] = False    # it is asked once, whatever comes of it
    return _is_traced(function, call)


cdef bint _is_for_jaxlib_to_raise() except -1:
    """Drop the error that was just reported: jaxlib fails too, or in another way."""
    try:
        propagate()
    except Exception:
        return True
    return False


cdef int _reason(JitPlans plans, Plan plan, int refused, int reason) noexcept:
    """The same; where none could be made the last time, this one may not be kept either."""
    if plan is not None and reason == NOT_RECORDED and plans.failures and not plans.plans:
        return plans.refusal
    return reason_of_miss(plan, refused, reason)


cdef PyObject* call_and_record(
    PyObject* function, vectorcallfunc reference, JitPlans plans, Context context, Call* call,
    int entry, int reason
) except? NULL:
    cdef Plan plan
    cdef Recording recording
    cdef jm_table table
    cdef PyObject* result
    cdef int refused = HIT
    cdef bint directly
    if _disable_jit.value:    # jaxlib looks at nothing
        count_miss_of(entry, plans.counts, reason)
        return reference(function, call.args, call.n, call.names)
    jm_table_init(&table, &counters)
    try:
        plan = draft_jit_plan(plans, call, context, &table, &refused)
        count_miss_of(entry, plans.counts, _reason(plans, plan, refused, reason))
    except BaseException:
        jm_table_free(&table)
        raise
    if plan is None:
        _refuse(plans, refused)
        jm_table_free(&table)
        enter()
        result = reference(function, call.args, call.n, call.names)
        leave()
        return result
    recording = Recording()
    recording.jit_info = jit_info_of(<object>function)
    recording.signature = _hashable(_signature(plan, call))
    recording.context = context
    directly = _may_ask_directly(
        <object>function, plans, recording.signature, call, &table
    )
    plan_module.compiling += 1
    enter()
    # Without a check for errors: the tracebacks of what goes wrong inside are the reference's.
    result = NULL
    if directly:
        result = (<ask_function>_ask_directly)(<object>function, call, recording)
    if result == NULL and (not directly or _is_for_jaxlib_to_raise()):
        result = (<watch_function>_watch)(
            function, reference, call.args, call.n, call.names, recording
        )
    plan_module.compiling -= 1
    try:
        if result != NULL:
            _keep(plans, plan, &table, recording)
    finally:
        leave()
    jm_table_free(&table)
    return result
