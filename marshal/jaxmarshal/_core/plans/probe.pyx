"""What plans would do with a call, found without running it."""

from cpython.object cimport PyObject

from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.placement.records cimport REFUSED
from jaxmarshal._core.plans.call cimport Call, describe_arguments, match_call
from jaxmarshal._core.plans.guard cimport begin_guard, end_guard, failed_words
from jaxmarshal._core.plans.intake cimport jm_intake
from jaxmarshal._core.plans.plan cimport Plan, Plans, check_transfers
from jaxmarshal._core.values.arguments cimport jm_table, jm_table_free, jm_table_init
from jaxmarshal._core.values.capi cimport jm_tuple_items
from jaxmarshal._core.values.kinds cimport jm_kind_is_argument
from jaxmarshal._core.values.live_objects cimport counters
from jaxmarshal._reports.counting cimport HIT, NOT_RECORDED, TREE, reason_is_about_a_kind


cdef tuple gather_call(Call* call, tuple args, dict kwargs):
    cdef tuple values = args, names = None
    if kwargs:
        values = args + tuple(kwargs.values())
        names = tuple(kwargs)
    describe_arguments(
        call, jm_tuple_items(values), len(args), NULL if names is None else <PyObject*>names
    )
    return values if names is None else (values, names)


cdef Py_ssize_t refused_argument(jm_table* table, int reason) except -2:
    cdef Py_ssize_t i
    for i in range(table.count):
        if table.slots[i].action == REFUSED or not jm_kind_is_argument(table.slots[i].kind):
            return i
    if reason_is_about_a_kind(reason):
        return table.count    # flattening went no further
    return -1


cdef tuple probe_plans(Plans plans, Context context, Call* call):
    cdef jm_table table
    cdef jm_intake intake
    cdef Plan plan
    cdef bint matched = False
    cdef Py_ssize_t passed, best = -1
    cdef tuple answer = (<int>NOT_RECORDED, -1, None, None)
    jm_table_init(&table, &counters)
    try:
        for item in [] if plans is None else plans.plans:
            plan = <Plan>item
            if plan.context is not context:
                continue
            begin_guard(plan, &intake, &table, False)
            try:
                matched = match_call(plan, call, &intake)
                if matched and intake.guard == intake.end:
                    return (check_transfers(&intake), -1, None, None)
                passed = intake.guard - plan.guards
                if intake.reason == HIT:
                    if best < 0:
                        answer = (<int>TREE, -1, None, None)
                elif passed > best:    # the plan that fits best is the one meant
                    best = passed
                    answer = (intake.reason, *failed_words(&intake))
            finally:
                end_guard(&intake)
    finally:
        jm_table_free(&table)
    return answer
