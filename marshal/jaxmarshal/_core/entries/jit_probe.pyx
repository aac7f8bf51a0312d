"""What a jitted function would do with a call, found without running it."""

from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.entries.jit_recorder cimport draft_jit_plan
from jaxmarshal._core.plans.call cimport Call, StaticRule
from jaxmarshal._core.plans.jit_configuration cimport jit_context
from jaxmarshal._core.plans.jit_plans cimport JitPlans, plans_of_jitted, static_rule_of
from jaxmarshal._core.plans.probe cimport gather_call, probe_plans, refused_argument
from jaxmarshal._core.values.arguments cimport jm_table, jm_table_free, jm_table_init
from jaxmarshal._core.values.array_words cimport words_are_vouched_for
from jaxmarshal._core.values.live_objects cimport counters
from jaxmarshal._reports.counting cimport HIT, NOT_RECORDED, OBJECT_LAYOUT, TREE


cdef int _refusal(JitPlans plans, Call* call, Context context, Py_ssize_t* index) except -1:
    """Why no plan can be made for these arguments, and which one is in the way; or HIT."""
    cdef jm_table table
    cdef int reason
    index[0] = -1
    jm_table_init(&table, &counters)
    try:
        if draft_jit_plan(plans, call, context, &table, &reason) is not None:
            return HIT
        index[0] = refused_argument(&table, reason)
        return reason
    finally:
        jm_table_free(&table)


def probe(function, tuple args, dict kwargs):
    """What `function(*args, **kwargs)` would do: (reason, argument, recorded word, found word).

    The argument is a number in the order of the leaves of arguments that are not static, or -1.
    """
    cdef Call call
    cdef Py_ssize_t index
    cdef int reason = NOT_RECORDED
    cdef JitPlans plans = plans_of_jitted(function)
    cdef Context context = jit_context(&reason)
    cdef tuple answer, _alive
    if context is None:
        return (reason, -1, None, None)
    if not words_are_vouched_for():
        return (OBJECT_LAYOUT, -1, None, None)
    if plans is None:    # of a function that jaxmarshal does not call
        plans = JitPlans(static_rule_of(function))
    _alive = gather_call(&call, args, kwargs)
    answer = probe_plans(plans, context, &call)
    if answer[0] != TREE and answer[0] != NOT_RECORDED:
        return answer
    reason = _refusal(plans, &call, context, &index)
    if reason == HIT and not plans.plans and plans.refusal != NOT_RECORDED:
        reason = plans.refusal
    return (reason, index, None, None) if reason else answer


def static_arguments(function):
    """The positions and names of a jitted function's static arguments."""
    cdef StaticRule rule = static_rule_of(function)
    if rule is None:
        return (frozenset(), frozenset())
    return (rule.numbers, rule.names)
