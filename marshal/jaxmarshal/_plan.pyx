"""Plans: making, keeping, guarding and running them."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

import weakref

from jaxmarshal._argtable cimport jm_slot, jm_table
from jaxmarshal._classify cimport JM_ARRAY, JM_KEY_ARRAY, jm_kind_is_host
from jaxmarshal._context cimport Context, on_forget, transfers_unguarded
from jaxmarshal._counters cimport counters, jm_counters
from jaxmarshal._records cimport (
    REFUSED, LeafPlan, TargetPlan, ensure_recorded, find_target, put_host, records_of, resolve_host
)
from jaxmarshal._layout cimport (
    array_aval, array_buffer, array_committed, array_layout_is_default, array_sharding, layout
)
from jaxmarshal._stats cimport (
    AVAL, COMMITTED, CONTEXT, DELETED, EXECUTABLE, GUARD, HIT, KEY_ARRAY, LAYOUT, NOT_RECORDED,
    SHARDING
)
from jaxmarshal._tree cimport free_structure, init_structure, rebuild, record_treedef

from jaxmarshal import _reference

cdef extern from *:
    """
    #define JM_COUNT_PLANS(counters, by) JM_COUNT(counters, live_plans, by)
    """
    void JM_COUNT_PLANS(jm_counters* counters, int by) noexcept

cdef extern from *:
    """
    static inline PyObject **jm_list_items(PyObject *list) {
        return ((PyListObject *)list)->ob_item;
    }
    """
    PyObject** jm_list_items(object items) noexcept

cdef enum:
    RECENT_OWNERS = 256    # a power of two
    MOST_FAILURES = 10     # then one call in 1023 tries to make a plan

cdef object _consume = _reference.consume_results
cdef object _array_type = _reference.ArrayImpl
cdef object _single_type = _reference.SingleDeviceSharding
cdef object _named_type = _reference.NamedSharding


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
                Py_XDECREF(self.guards[i].sharding)
                Py_XDECREF(self.guards[i].put)
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
    if plan is None:
        plans.failures = min(plans.failures + 1, MOST_FAILURES)
        plans.skip = (1 << plans.failures) - 2
        plans.refusal = reason
    else:
        plans.failures = 0
        # A list of its own: another thread may be going through the old one.
        plans.plans = [plan, *plans.plans[:PLANS_PER_OWNER - 1]]
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


cdef inline int _check_array(jm_guard* guard, object array, void* buffer) except -1:
    if buffer == NULL:
        return DELETED
    if not _same(&guard.aval, array_aval(array)):
        return AVAL
    if not _same(&guard.sharding, array_sharding(array)):
        return SHARDING
    if array_committed(array) != guard.committed:
        return COMMITTED
    if guard.kept and not array_layout_is_default(array, buffer):
        return LAYOUT
    return HIT


cdef int _check_key(jm_guard* guard, jm_slot* slot) except -1:
    """A typed key is its implementation and a base array, which goes to the executable."""
    cdef object key = <object>slot.obj
    if not _take_base_array(slot):
        return KEY_ARRAY
    if <PyObject*>key._impl != guard.impl:
        return AVAL
    return _check_array(guard, <object>slot.ready, slot.buffer)


cdef bint _take_base_array(jm_slot* slot) except -1:
    """Put the base array of a typed key into its slot. False if that is no ArrayImpl."""
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
    target = find_target(records_of(context), <object>guard.put)
    if target is None:
        return NOT_RECORDED
    reason = resolve_host(slot, target)
    if reason:
        return reason
    aval = (<LeafPlan>slot.plan).aval
    wanted = <object>guard.aval
    if aval.dtype != wanted.dtype or aval.shape != wanted.shape:
        return AVAL
    Py_INCREF(target)
    slot.target = <PyObject*>target
    return HIT


cdef int check(Plan plan, jm_table* table) except -1:
    cdef Py_ssize_t i = 0
    cdef jm_slot* slot
    cdef jm_guard* guard
    cdef bint host = False, words = jm_words_are_known(&layout)
    cdef int reason
    plan.failed_at = -1
    if table.count != plan.count:
        return NOT_RECORDED
    while True:
        if words:
            i = jm_words_match_until(&layout, plan.guards, table.slots, i, plan.count)
        if i == plan.count:
            break
        slot = &table.slots[i]
        guard = &plan.guards[i]
        if (slot.kind == JM_ARRAY) != (guard.kind == JM_ARRAY) or (
            (slot.kind == JM_KEY_ARRAY) != (guard.kind == JM_KEY_ARRAY)
        ):
            plan.failed_at = i
            return NOT_RECORDED
        if slot.kind == JM_ARRAY:
            reason = _check_array(guard, <object>slot.obj, slot.buffer)
        elif slot.kind == JM_KEY_ARRAY:
            reason = _check_key(guard, slot)
        else:
            reason = _check_host(guard, slot, plan.context)
            host = True
        if reason:
            plan.failed_at = i
            return reason
        i += 1
    if host and not transfers_unguarded(True, False):
        return GUARD
    return HIT


cdef tuple failed_words(Plan plan, jm_table* table, int reason):
    cdef jm_guard* guard
    cdef jm_slot* slot
    if plan.failed_at < 0:
        return (-1, None, None)
    guard = &plan.guards[plan.failed_at]
    slot = &table.slots[plan.failed_at]
    found = <object>slot.obj
    if slot.kind == JM_KEY_ARRAY and guard.kind == JM_KEY_ARRAY:
        if reason == AVAL and <PyObject*>found._impl != guard.impl:
            return (plan.failed_at, <object>guard.impl, found._impl)
        found = found._base_array
    if reason == AVAL:
        return (plan.failed_at, <object>guard.aval, _reference.abstractify(found))
    if reason == SHARDING:
        return (plan.failed_at, <object>guard.sharding, found.sharding)
    if reason == COMMITTED:
        return (plan.failed_at, bool(guard.committed), found.committed)
    if reason == LAYOUT:
        return (plan.failed_at, "the default layout", found.format.layout)
    if reason == DELETED:
        return (plan.failed_at, "a live array", "a deleted array")
    return (plan.failed_at, None, type(found))


# --- Running -------------------------------------------------------------------------------------

cdef inline void _set_input(tuple inputs, Py_ssize_t i, object array) noexcept:
    Py_INCREF(array)
    PyTuple_SET_ITEM(inputs, i, array)


cdef inline object _array_of(jm_slot* slot):
    """The array that goes to the executable: the argument, or the base array of a typed key."""
    return <object>(slot.ready if slot.kind == JM_KEY_ARRAY else slot.obj)


cdef tuple _inputs(Plan plan, jm_table* table):
    """The executable's inputs: constants, arrays as they are, host arguments placed.

    None if an array was deleted by another thread while a host argument was placed.
    """
    cdef Py_ssize_t i, n = 0
    cdef bint placed = False
    cdef jm_guard* guard
    cdef jm_slot* slot
    cdef tuple inputs = PyTuple_New(plan.inputs)    # quicker to make than a list
    if plan.arrays_only:
        for i in range(plan.count):
            _set_input(inputs, i, <object>table.slots[i].obj)
        return inputs
    if plan.constants is not None:
        for array in plan.constants:
            _set_input(inputs, n, array)
            n += 1
    for i in range(plan.count):
        guard = &plan.guards[i]
        if not guard.kept:
            continue
        slot = &table.slots[i]
        if not jm_kind_is_host(guard.kind):
            _set_input(inputs, n, _array_of(slot))
        else:
            _set_input(
                inputs, n, put_host(slot, <TargetPlan>slot.target, <object>guard.put)
            )
            placed = True
        n += 1
    if placed:
        for i in range(plan.count):
            slot = &table.slots[i]
            if not jm_kind_is_host(slot.kind) and array_buffer(_array_of(slot)) == NULL:
                return None
    return inputs


cdef list run(Plan plan, jm_table* table):
    cdef tuple inputs = _inputs(plan, table)
    if inputs is None:
        return None
    return _consume(plan.execute(inputs), plan.handlers)


cdef object build_results(Plan plan, list results):
    if plan.unflatten is not None:
        return plan.unflatten(results)
    return rebuild(&plan.results, jm_list_items(results), sizeof(void*))


cdef bint set_results(Plan plan, object treedef) except -1:
    if treedef.num_leaves != len(plan.handlers):
        return False
    if not record_treedef(treedef, &plan.results):
        plan.unflatten = treedef.unflatten
    return True


# --- Making --------------------------------------------------------------------------------------

cdef bint _is_plain(object executable) except -1:
    """Can the executable be run by handing arrays to `execute_sharded` and nothing else?"""
    if type(executable) is not _reference.ExecuteReplicated:
        return False
    if (
        executable.ordered_effects or executable.has_unordered_effects
        or executable.has_host_callbacks or executable.mut is not None
        or executable.pgle_profiler is not None
    ):
        return False
    in_handler = executable.in_handler
    return (
        type(in_handler) is _reference.pxla.InputsHandler
        and all([wanted is None for wanted in in_handler.in_layouts])
        and type(executable.out_handler) is _reference.pxla.ResultsHandler
    )


cdef bint _is_in_place(object array, object sharding) except -1:
    """Would the reference hand this array to the executable as it is?"""
    found = array.sharding
    if found == sharding:
        return True
    if type(found) is not _single_type and type(found) is not _named_type:
        return False
    if found.num_devices != sharding.num_devices or found.memory_kind != sharding.memory_kind:
        return False
    if found.num_devices == 1:
        return found._device_assignment == sharding._device_assignment
    return array.committed and found.is_equivalent_to(sharding, array.ndim)


cdef inline void _own(PyObject** place, object value) noexcept:
    Py_INCREF(value)
    place[0] = <PyObject*>value


cdef int _make_host_guard(jm_guard* guard, object value, object sharding) except -1:
    if sharding is not None and type(sharding) is not _single_type and (
        type(sharding) is not _named_type
    ):
        return EXECUTABLE
    _own(&guard.put, sharding)
    _own(&guard.aval, _reference.abstractify(value))
    return HIT


cdef int _make_array_guard(jm_guard* guard, object array, void* buffer, object sharding) except -1:
    if buffer == NULL or array.is_deleted():
        return DELETED
    if guard.kept and not _is_in_place(array, sharding):
        return SHARDING
    if guard.kept and not array_layout_is_default(array, buffer):
        return LAYOUT
    _own(&guard.aval, array.aval)
    _own(&guard.sharding, array.sharding)
    guard.committed = array.committed
    return HIT


cdef int _make_key_guard(jm_guard* guard, jm_slot* slot, object sharding) except -1:
    key = <object>slot.obj
    # Checks of key reuse look at every call.
    if _reference.debug_key_reuse.value or not _take_base_array(slot):
        return KEY_ARRAY
    _own(&guard.impl, key._impl)
    if guard.kept:
        sharding = _reference.physical_sharding(key.aval, sharding)
    return _make_array_guard(guard, <object>slot.ready, slot.buffer, sharding)


cdef int _make_guard(jm_guard* guard, jm_slot* slot, object sharding) except -1:
    """Fill a guard. `sharding` is the executable's for this input, None where it is pruned."""
    guard.kind = slot.kind
    guard.kept = sharding is not None
    if slot.kind == JM_ARRAY:
        return _make_array_guard(guard, <object>slot.obj, slot.buffer, sharding)
    if slot.kind == JM_KEY_ARRAY:
        return _make_key_guard(guard, slot, sharding)
    return _make_host_guard(guard, <object>slot.obj, sharding)


cdef Plan make_plan(
    Context context, jm_table* table, object executable, list constants, int* reason
):
    cdef Py_ssize_t i, n_constants = len(constants) if constants else 0
    cdef Py_ssize_t position = n_constants
    cdef Plan plan
    reason[0] = EXECUTABLE
    if not _is_plain(executable):
        return None
    kept = executable.kept_var_idx
    shardings = executable.in_handler.in_shardings
    # Constants come first, among the inputs and among the indices of those that are kept.
    if not all([i in kept for i in range(n_constants)]):
        return None
    plan = Plan(table.count)
    plan.context = context
    plan.constants = constants if n_constants else None
    plan.execute = executable.xla_executable.execute_sharded
    plan.handlers = list(executable.out_handler.handlers)
    for i in range(table.count):
        sharding = None
        if i + n_constants in kept:
            if position >= len(shardings):
                return None
            sharding = shardings[position]
            position += 1
        if context.distributed and jm_kind_is_host(table.slots[i].kind):
            reason[0] = CONTEXT    # placing is not for one process to decide
        else:
            reason[0] = _make_guard(&plan.guards[i], &table.slots[i], sharding)
        if reason[0]:
            table.slots[i].action = REFUSED
            return None
    plan.inputs = len(shardings)
    plan.arrays_only = n_constants == 0 and all(
        [plan.guards[i].kind == JM_ARRAY and plan.guards[i].kept for i in range(plan.count)]
    )
    if position != plan.inputs:
        reason[0] = EXECUTABLE
        return None
    return plan


cdef int record_host_arguments(Plan plan, jm_table* table) except -1:
    cdef Py_ssize_t i
    cdef jm_guard* guard
    for i in range(plan.count):
        guard = &plan.guards[i]
        if jm_kind_is_host(guard.kind):
            ensure_recorded(
                <object>table.slots[i].obj, guard.kind, <object>guard.put, plan.context
            )
    return 0
