"""Plans: keeping, guarding and running them."""

from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_New
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

import weakref

from jaxmarshal._argtable cimport (
    JM_COUNT_BUFFER_READ, jm_slot, jm_table, jm_table_clear, push_argument
)
from jaxmarshal._classify cimport (
    JM_ARRAY, JM_KEY_ARRAY, Py_TYPE, classify, jm_kind_is_argument, jm_kind_is_host,
    jm_kind_of_type, types
)
from jaxmarshal._context cimport Context, on_forget, transfers_unguarded
from jaxmarshal._counters cimport counters, jm_counters
from jaxmarshal._errors cimport propagate
from jaxmarshal._intake cimport jm_guard, jm_intake, jm_words_are_known
from jaxmarshal._layout cimport (
    array_aval, array_buffer, array_committed, array_layout_is_default, array_sharding, layout
)
from jaxmarshal._records cimport (
    LeafPlan, TargetPlan, find_target, put_host, records_of, resolve_host
)
from jaxmarshal._stats cimport (
    AVAL, COMMITTED, DELETED, GUARD, HIT, KEY_ARRAY, LAYOUT, NOT_RECORDED, SHARDING
)
from jaxmarshal._tree cimport LEAVES, free_structure, init_structure, rebuild, record_treedef

from jaxmarshal import _reference

cdef extern from *:
    """
    #define JM_COUNT_PLANS(counters, by) JM_COUNT(counters, live_plans, by)
    static inline PyObject **jm_list_items(PyObject *list) {
        return ((PyListObject *)list)->ob_item;
    }
    static inline PyObject **jm_tuple_items(PyObject *tuple) {
        return ((PyTupleObject *)tuple)->ob_item;
    }
    """
    void JM_COUNT_PLANS(jm_counters* counters, int by) noexcept
    PyObject** jm_list_items(object items) noexcept
    PyObject** jm_tuple_items(object items) noexcept
    PyObject* PyObject_CallOneArg(PyObject* function, PyObject* arg) noexcept
    PyObject* PyObject_Vectorcall(
        PyObject* function, PyObject** args, size_t n, PyObject* names
    ) noexcept

# As `jm_intake` holds it; see `_errors`.
ctypedef int (*look_function)(jm_intake*, PyObject*) noexcept

cdef enum:
    RECENT_OWNERS = 256    # a power of two
    MOST_FAILURES = 10     # then one call in 1023 tries to make a plan

    # jaxlib puts off releasing what other threads let go of; see `run`.
    CALLS_PER_COLLECTION = 64

cdef object _consume = _reference.consume_results
cdef object _collect_garbage = _reference.collect_garbage
cdef object _array_type = _reference.ArrayImpl
cdef object _key_type = _reference.PRNGKeyArray
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


# --- The guard -----------------------------------------------------------------------------------

cdef inline bint _same(PyObject** recorded, object found) except -1:
    """By pointer first; then by equality, which makes `found` the recorded object."""
    cdef object known
    cdef PyObject* old
    if recorded[0] == <PyObject*>found:
        return True
    known = <object>recorded[0]    # held: a comparison may let another thread adopt a pointer
    if type(known) is not type(found) or not (known == found):
        return False
    Py_INCREF(found)
    old = recorded[0]
    recorded[0] = <PyObject*>found
    Py_DECREF(<object>old)
    return True


cdef int _check_array(jm_guard* guard, object array) except -1:
    cdef void* buffer
    if not _same(&guard.aval, array_aval(array)):
        return DELETED if array_buffer(array) == NULL else <int>AVAL
    if not _same(&guard.where, array_sharding(array)):
        return DELETED if array_buffer(array) == NULL else <int>SHARDING
    if array_committed(array) != guard.committed:
        return COMMITTED
    # Read here: what was just compared may have run code that deletes arrays.
    buffer = array_buffer(array)
    JM_COUNT_BUFFER_READ(&counters)
    if buffer == NULL:
        return DELETED
    if guard.input >= 0 and not array_layout_is_default(array, buffer):
        return LAYOUT
    return HIT


cdef int _check_key(jm_guard* guard, jm_slot* slot) except -1:
    """A typed key is its implementation and a base array, which goes to the executable."""
    cdef object key = <object>slot.obj
    if not take_base_array(slot):
        return KEY_ARRAY
    if <PyObject*>key._impl != guard.impl:
        return AVAL
    return _check_array(guard, <object>slot.ready)


cdef bint take_base_array(jm_slot* slot) except -1:
    base = (<object>slot.obj)._base_array
    if type(base) is not _array_type:
        return False
    slot.buffer = array_buffer(base)
    Py_INCREF(base)
    Py_XDECREF(slot.ready)
    slot.ready = <PyObject*>base
    return True


cdef int _check_host(jm_guard* guard, jm_slot* slot, Context context) except -1:
    cdef TargetPlan target
    cdef int reason
    target = find_target(records_of(context), <object>guard.where)
    if target is None:
        return NOT_RECORDED
    reason = resolve_host(slot, target)
    if reason:
        return reason
    aval = (<LeafPlan>slot.plan).aval
    wanted = <object>guard.aval
    if (
        aval.dtype != wanted.dtype or aval.shape != wanted.shape
        or aval.weak_type != wanted.weak_type
    ):
        return AVAL
    Py_INCREF(target)
    slot.target = <PyObject*>target
    return HIT


cdef inline void _set_input(jm_intake* intake, jm_guard* guard, PyObject* array) noexcept:
    if guard.input >= 0:
        Py_INCREF(<object>array)
        intake.inputs[guard.input] = array


cdef int _take_array(jm_intake* intake, object array) except -1:
    cdef int reason = _check_array(intake.guard, array)
    if reason == HIT:
        _set_input(intake, intake.guard, <PyObject*>array)
    return reason


cdef int _take_other(jm_intake* intake, object obj, int kind) except -1:
    """A typed key, or host data, which are placed once every argument has passed."""
    cdef jm_slot* slot
    cdef int reason
    cdef jm_guard* guard = intake.guard
    push_argument(intake.table, obj, kind, NULL)
    slot = &intake.table.slots[intake.table.count - 1]
    slot.number = guard - (<Plan>intake.plan).guards
    if kind != JM_KEY_ARRAY:
        return _check_host(guard, slot, (<Plan>intake.plan).context)
    reason = _check_key(guard, slot)
    if reason == HIT:
        _set_input(intake, guard, slot.ready)
    return reason


cdef int _look(jm_intake* intake, PyObject* obj) except -1:
    """Look closer at an argument whose words did not match; see `jm_intake`."""
    cdef int kind = classify(obj), wanted = intake.guard.kind, reason
    if not jm_kind_is_argument(kind):
        return 0
    if kind == JM_ARRAY and wanted == JM_ARRAY:
        reason = _take_array(intake, <object>obj)
    elif (kind == JM_KEY_ARRAY) == (wanted == JM_KEY_ARRAY) and kind != JM_ARRAY and (
        wanted != JM_ARRAY
    ):
        reason = _take_other(intake, <object>obj, kind)
    else:
        reason = NOT_RECORDED
    if reason:
        intake.reason = reason
        Py_INCREF(<object>obj)
        intake.found = obj
        return 0
    intake.guard += 1
    return 1


cdef int _look_at_others(jm_intake* intake, PyObject* obj) except -1:
    """The same where avals and shardings that are equal but another object do not count."""
    if jm_kind_of_type(&types, Py_TYPE(obj)) == JM_ARRAY:
        intake.reason = NOT_RECORDED
        return 0
    return _look(intake, obj)


cdef int begin(Plan plan, jm_intake* intake, jm_table* table, bint by_pointer) except -1:
    cdef Py_ssize_t i
    cdef tuple inputs = PyTuple_New(plan.inputs)    # quicker to make than a list
    Py_INCREF(inputs)
    intake.tuple = <PyObject*>inputs
    intake.inputs = jm_tuple_items(inputs)
    intake.layout = &layout
    intake.array_type = NULL
    if jm_words_are_known(&layout):
        intake.array_type = <PyTypeObject*>_array_type
    intake.guard = plan.guards
    intake.end = plan.guards + plan.count
    intake.table = table
    intake.plan = <void*>plan
    intake.found = NULL
    intake.reason = HIT
    intake.look = <look_function>(_look_at_others if by_pointer else _look)
    if plan.constants is not None:
        for i, array in enumerate(plan.constants):
            Py_INCREF(array)
            intake.inputs[i] = <PyObject*>array
    return 0


cdef void end(jm_intake* intake) noexcept:
    Py_XDECREF(intake.tuple)
    Py_XDECREF(intake.found)
    jm_table_clear(intake.table)


cdef tuple failed_words(jm_intake* intake):
    cdef jm_guard* guard = intake.guard
    cdef int reason = intake.reason
    cdef Py_ssize_t number = guard - (<Plan>intake.plan).guards
    if intake.found == NULL:
        return (-1, None, None)
    found = <object>intake.found
    if guard.kind == JM_KEY_ARRAY and type(found) is _key_type:
        if reason == AVAL and <PyObject*>found._impl != guard.impl:
            return (number, <object>guard.impl, found._impl)
        found = found._base_array
    if reason == AVAL:
        return (number, <object>guard.aval, _reference.abstractify(found))
    if reason == SHARDING:
        return (number, <object>guard.where, found.sharding)
    if reason == COMMITTED:
        return (number, bool(guard.committed), found.committed)
    if reason == LAYOUT:
        return (number, "the default layout", found.format.layout)
    if reason == DELETED:
        return (number, "a live array", "a deleted array")
    return (number, None, type(found))


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
    if treedef.num_leaves != len(plan.handlers):
        return False
    if not record_treedef(treedef, &plan.results):
        plan.unflatten = treedef.unflatten
    plan.single = plan.results.count == 1 and plan.results.steps[0].op == LEAVES
    return True
