"""Plans of jitted functions, made of what jaxlib is about to keep of a call.

When a jitted function of the reference meets a signature it does not know, jaxlib calls a Python
function that traces, compiles and runs, and that returns what jaxlib keeps for the next time. That
function is the one thing replaced: a `Recorder` calls the original and makes a plan of what it
returned.
"""

from cpython.object cimport PyObject, PyTypeObject

from jaxmarshal._argtable cimport jm_table, jm_table_free, jm_table_init
from jaxmarshal._call cimport Call, describe, describe_call
from jaxmarshal._context cimport Context
from jaxmarshal._counters cimport JM_DEBUG, counters
from jaxmarshal cimport _execute
from jaxmarshal._execute cimport flatten_for_plan
from jaxmarshal._jit_context cimport jit_context
from jaxmarshal._make_plan cimport complete_plan, draft_plan, record_host_arguments
from jaxmarshal._method cimport PyObject_Vectorcall, PyVectorcall_NARGS, jm_use_vectorcall
from jaxmarshal._plan cimport Plan, set_results, with_plan
from jaxmarshal._stats cimport EXECUTABLE, HIT, TREE
from jaxmarshal._tree cimport Structure, free_structure, init_structure

from jaxmarshal import _reference

cdef object _result_handler = _reference.result_handler


cdef Plan draft(JitPlans plans, Call* call, Context context, jm_table* table, int* reason):
    cdef Structure structure
    cdef Plan plan
    init_structure(&structure, by_node=True)
    try:
        reason[0] = flatten_for_plan(call, plans.rule, &structure, table)
        if reason[0]:
            return None
        plan = draft_plan(context, table, reason)
        if plan is not None:
            describe_call(plan, call, plans.rule, &structure)
        return plan
    except Exception:
        reason[0] = TREE
        return None
    finally:
        free_structure(&structure)


cdef bint _complete(Plan plan, jm_table* table, tuple returned, int* reason) except -1:
    """Finish a plan with what jaxlib is about to keep. 0 with a reason."""
    reason[0] = EXECUTABLE
    data = returned[1]
    if data is None or (len(returned) > 2 and returned[2]):
        return False
    if any([wanted is not None for wanted in data.in_device_local_layouts]):
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
    return True


cdef int _keep(JitPlans plans, Plan plan, jm_table* table, object returned, int reason) except -1:
    """The reference has performed the call: keep its plan, or try again later."""
    try:
        if plan is not None and not _complete(plan, table, returned, &reason):
            plan = None
    except Exception:
        if JM_DEBUG:
            raise
        plan = None
    if plan is None:
        plans.refusal = reason
        # What jaxlib keeps nothing of, it asks for in every such call.
        if (<tuple>returned)[1] is None:
            plans.failures = min(plans.failures + 1, 10)
            plans.leave = (1 << plans.failures) - 2
        return 0
    plans.failures = 0
    plans.missed = 0
    plans.skip = 0
    plans.plans = with_plan(plans.plans, plan)
    return 0


cdef PyObject* _record(
    PyObject* self, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """Call the reference's function and make a plan of what it returned."""
    cdef Recorder recorder = <Recorder>self
    cdef JitPlans plans = recorder.plans
    cdef Context context = None
    cdef Call call
    cdef Plan plan = None
    cdef jm_table table
    cdef PyObject* returned
    cdef int reason = HIT
    if plans.leave:
        plans.leave -= 1
    else:
        context = jit_context(&reason)
    if context is None:
        return PyObject_Vectorcall(<PyObject*>recorder.original, args, nargsf, names)
    describe(&call, args, PyVectorcall_NARGS(nargsf), names)
    jm_table_init(&table, &counters)
    plan = draft(plans, &call, context, &table, &reason)
    _execute.compiling += 1
    returned = PyObject_Vectorcall(<PyObject*>recorder.original, args, nargsf, names)
    _execute.compiling -= 1
    if returned != NULL:
        _keep(plans, plan, &table, <object>returned, reason)
    jm_table_free(&table)
    return returned


cdef class JitPlans(Plans):
    def __cinit__(self, rule=None):
        self.rule = rule


cdef class Recorder:
    def __cinit__(self, original, plans):
        self.vectorcall = <vectorcallfunc>_record
        self.original = original
        self.plans = plans

jm_use_vectorcall(
    <PyTypeObject*>Recorder, <Py_ssize_t><void*>&(<Recorder><void*>NULL).vectorcall, False
)
