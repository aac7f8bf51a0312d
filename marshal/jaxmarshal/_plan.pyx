"""Plans: keeping and running them."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

import weakref

from jaxmarshal._argtable cimport jm_slot
from jaxmarshal._classify cimport jm_kind_is_host
from jaxmarshal._context cimport on_forget, transfers_unguarded
from jaxmarshal._counters cimport counters, jm_counters
from jaxmarshal._errors cimport propagate
from jaxmarshal._intake cimport jm_guard, jm_intake
from jaxmarshal._layout cimport array_buffer
from jaxmarshal._records cimport TargetPlan, put_host
from jaxmarshal._stats cimport DELETED, GUARD, HIT
from jaxmarshal._tree cimport (
    LEAVES, LIST_NODE, Step, free_structure, init_structure, rebuild, record_treedef
)

from jaxmarshal import _reference

cdef extern from *:
    """
    #define JM_COUNT_PLANS(counters, by) JM_COUNT(counters, live_plans, by)
    """
    void JM_COUNT_PLANS(jm_counters* counters, int by) noexcept
    PyObject* PyObject_CallOneArg(PyObject* function, PyObject* arg) noexcept
    PyObject* PyObject_Vectorcall(
        PyObject* function, PyObject** args, size_t n, PyObject* names
    ) noexcept

cdef extern from "jaxmarshal/containers.h":
    PyObject** jm_list_items(object items) noexcept

cdef enum:
    RECENT_OWNERS = 256    # a power of two
    MOST_FAILURES = 10     # then one call in 1023 tries to make a plan

    # jaxlib puts off releasing what other threads let go of; see `run`.
    CALLS_PER_COLLECTION = 64

cdef object _consume = _reference.consume_results
cdef object _collect_garbage = _reference.collect_garbage
cdef object _runtime_error = _reference.JaxRuntimeError
cdef long long _runs = 0


cdef class Plan:
    def __cinit__(self, Py_ssize_t count):
        init_structure(&self.arguments)
        init_structure(&self.results)
        self.count = count
        self.guards = <jm_guard*>calloc(count if count else 1, sizeof(jm_guard))
        if self.guards == NULL:
            raise MemoryError()
        JM_COUNT_PLANS(&counters, 1)

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.guards != NULL:
            for i in range(self.count):
                Py_XDECREF(self.guards[i].aval)
                Py_XDECREF(self.guards[i].where)
                Py_XDECREF(self.guards[i].impl)
            free(self.guards)
            JM_COUNT_PLANS(&counters, -1)
        free_structure(&self.arguments)
        free_structure(&self.results)


cdef class Plans:
    def __cinit__(self):
        self.plans = []


# --- Keeping: plans belong to their owner --------------------------------------------------------

ctypedef struct RecentOwner:
    PyObject* owner    # borrowed, for comparison only
    PyObject* plans    # borrowed from `_owners`

cdef dict _owners = {}    # id of an owner -> (weak reference to it, its Plans)
cdef RecentOwner _recent[RECENT_OWNERS]


cdef inline RecentOwner* _place(uintptr_t owner) noexcept:
    return &_recent[((owner >> 4) ^ (owner >> 12)) & (RECENT_OWNERS - 1)]


cdef Plans plans_of(object owner):
    cdef RecentOwner* place = _place(<uintptr_t><PyObject*>owner)
    if place.owner == <PyObject*>owner:
        return <Plans>place.plans
    entry = _owners.get(<uintptr_t><PyObject*>owner)
    if entry is None:
        return None
    plans = <Plans>(<tuple>entry)[1]
    place.owner = <PyObject*>owner
    place.plans = <PyObject*>plans
    return plans


def _drop(owner: int) -> None:
    cdef RecentOwner* place = _place(owner)
    if place.owner == <PyObject*><uintptr_t>owner:
        place.owner = NULL
        place.plans = NULL
    _owners.pop(owner, None)


cdef int keep_plan(object owner, Plan plan, int reason) except -1:
    cdef Plans plans = plans_of(owner)
    if plans is None:
        key = <uintptr_t><PyObject*>owner
        plans = Plans()
        # The callback runs before the owner's memory is free for another object.
        _owners[key] = (weakref.ref(owner, lambda _, key=key: _drop(key)), plans)
    return add_plan(plans, plan, reason)


cdef list with_plan(list plans, Plan plan):
    global _runs
    _runs += 1    # the reference has just run it
    plan.used = _runs
    kept = list(plans)
    if len(kept) >= PLANS_PER_OWNER:
        kept.remove(min(kept, key=_last_run))
    return [plan, *kept]


def _last_run(plan: Plan) -> int:
    return plan.used


cdef int add_plan(Plans plans, Plan plan, int reason) except -1:
    if plan is None:
        plans.failures = min(plans.failures + 1, MOST_FAILURES)
        plans.skip = (1 << plans.failures) - 2
        plans.refusal = reason
    else:
        plans.failures = 0
        plans.plans = with_plan(plans.plans, plan)
    return 0


def forget() -> None:
    """Drop every plan."""
    memset(_recent, 0, sizeof(_recent))
    _owners.clear()


on_forget(forget)


def live_owners() -> int:
    """How many objects have plans now; for tests."""
    return len(_owners)


# --- Running -------------------------------------------------------------------------------------

cdef int check_transfers(jm_intake* intake) except -1:
    cdef Py_ssize_t i
    for i in range(intake.table.count):
        if jm_kind_is_host(intake.table.slots[i].kind):
            return <int>HIT if transfers_unguarded(True, False) else <int>GUARD
    return HIT


cdef int _put_host_arguments(Plan plan, jm_intake* intake) except -1:
    """Put the host arguments where they go, unless transfers are guarded."""
    cdef Py_ssize_t i
    cdef jm_slot* slot
    cdef jm_guard* guard
    cdef int reason = check_transfers(intake)
    if reason:
        return reason
    for i in range(intake.table.count):
        slot = &intake.table.slots[i]
        guard = &plan.guards[slot.number]
        if jm_kind_is_host(slot.kind) and guard.input >= 0:
            array = put_host(slot, <TargetPlan>slot.target, <object>guard.where)
            Py_INCREF(array)
            intake.inputs[guard.input] = <PyObject*>array
    return HIT


cdef bint _is_about_deleted(object error, jm_intake* intake) except -1:
    """Did a run fail because a constant was deleted, or an argument donated before?

    Or deleted by what ran after it was looked at: comparisons, other threads. jaxlib looks before
    it does anything.
    """
    for array in <tuple>intake.tuple:
        if array_buffer(array) == NULL:
            return True
    if "deleted or donated" not in str(error):
        return False
    return any([array.is_deleted() for array in <tuple>intake.tuple])


cdef int _deleted_or_raise(Plan plan, jm_intake* intake) except -1:
    """jaxlib has just reported an error: raise it unless it is DELETED and nothing was run."""
    cdef str failure = None
    try:
        propagate()
    except Exception as error:
        if not _is_about_deleted(error, intake):
            if not plan.fails_as_jit or type(error) is not _runtime_error:
                raise
            failure = str(error)
    if failure is not None:
        raise ValueError(failure)
    intake.reason = DELETED
    return 0


cdef PyObject* _execute(Plan plan, PyObject* inputs) noexcept:
    """A new reference to the list of results, or NULL with an error set."""
    cdef PyObject* results
    cdef PyObject* pair[2]
    pair[0] = PyObject_CallOneArg(<PyObject*>plan.execute, inputs)
    if pair[0] == NULL:
        return NULL
    pair[1] = <PyObject*>plan.handlers
    results = PyObject_Vectorcall(<PyObject*>_consume, pair, 2, NULL)
    Py_DECREF(<object>pair[0])
    return results


cdef PyObject* run(Plan plan, jm_intake* intake) except? NULL:
    global _runs
    cdef PyObject* results
    if intake.table.count:
        intake.reason = _put_host_arguments(plan, intake)
        if intake.reason:
            return NULL
    # jaxlib's own calls do this now and then; `execute_sharded` does not.
    _runs += 1
    plan.used = _runs
    if _runs % CALLS_PER_COLLECTION == 0:
        _collect_garbage()
    results = _execute(plan, intake.tuple)
    if results == NULL:
        _deleted_or_raise(plan, intake)
    return results


cdef PyObject* build_results(Plan plan, PyObject* results) except NULL:
    cdef object built
    if plan.listed:
        return results    # jaxlib has made it for this call
    if plan.single:
        built = <object>jm_list_items(<object>results)[0]
    elif plan.unflatten is not None:
        built = plan.unflatten(<object>results)
    else:
        built = rebuild(&plan.results, jm_list_items(<object>results), sizeof(void*))
    Py_DECREF(<object>results)
    Py_INCREF(built)
    return <PyObject*>built


cdef bint set_results(Plan plan, object treedef) except -1:
    cdef Step* steps
    cdef Py_ssize_t n = len(plan.handlers)
    if treedef.num_leaves != n:
        return False
    if not record_treedef(treedef, &plan.results):
        plan.unflatten = treedef.unflatten
        return True
    steps = plan.results.steps
    plan.single = plan.results.count == 1 and steps[0].op == LEAVES
    plan.listed = plan.results.count == 2 and steps[0].op == LIST_NODE and steps[0].n == n and (
        steps[1].op == LEAVES
    )
    return True
