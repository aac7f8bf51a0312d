"""Making plans from what the reference has."""

from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.placement.records cimport (
    CUSTOM_LAYOUT, DONATED, REFUSED, TargetPlan, ensure_recorded, find_target, records_of,
    resolve_host, shares_memory
)
from jaxmarshal._core.plans.guard cimport take_base_array
from jaxmarshal._core.plans.intake cimport jm_guard
from jaxmarshal._core.plans.plan cimport Plan
from jaxmarshal._core.values.arguments cimport jm_slot, jm_table
from jaxmarshal._core.values.array_words cimport (
    is_gone, jm_array_layout, jm_buffer_layout_is_default, jm_word, words_of
)
from jaxmarshal._core.values.capi cimport replace_reference
from jaxmarshal._core.values.kinds cimport JM_ARRAY, JM_KEY_ARRAY, jm_kind_is_host
from jaxmarshal._reports.counting cimport (
    CONTEXT, DELETED, EXECUTABLE, HIT, KEY_ARRAY, LAYOUT, OBJECT_LAYOUT, SHARDING
)

from jaxmarshal._jax import private

cdef object _single_type = private.SingleDeviceSharding
cdef object _named_type = private.NamedSharding


# --- First step ----------------------------------------------------------------------------------

cdef bint _find_words(Plan plan, jm_guard* guard) except -1:
    """Have the plan know the words of this array, which must be those of its other arrays."""
    cdef Py_ssize_t i = guard - plan.guards
    cdef const jm_array_layout* words
    if i and plan.guards[i - 1].where == guard.where:    # as of the argument before it
        return True
    words = words_of(<object>guard.where)
    if plan.words == NULL:
        plan.words = words
    return words != NULL and plan.words == words


cdef int _draft_array(Plan plan, jm_guard* guard, jm_slot* slot, object array) except -1:
    cdef void* buffer
    if is_gone(array):
        return DELETED
    replace_reference(&guard.aval, array.aval)
    replace_reference(&guard.where, array.sharding)
    guard.committed = array.committed
    if not _find_words(plan, guard):
        return OBJECT_LAYOUT
    buffer = jm_word(<void*>array, plan.words.buffer)    # read anew: Python code has run
    if buffer == NULL:
        return DELETED
    if not jm_buffer_layout_is_default(plan.words, buffer):
        slot.action = CUSTOM_LAYOUT
    return HIT


cdef int _draft_guard(Plan plan, jm_guard* guard, jm_slot* slot) except -1:
    guard.kind = slot.kind
    guard.input = -1
    guard.donated = slot.action == DONATED
    if slot.kind == JM_ARRAY:
        return _draft_array(plan, guard, slot, <object>slot.obj)
    if slot.kind != JM_KEY_ARRAY:
        replace_reference(&guard.aval, private.abstractify(<object>slot.obj))
        return HIT
    # Checks of key reuse look at every call.
    if private.debug_key_reuse.value or not take_base_array(slot):
        return KEY_ARRAY
    replace_reference(&guard.impl, (<object>slot.obj)._impl)
    return _draft_array(plan, guard, slot, <object>slot.ready)


cdef Plan draft_plan(Context context, jm_table* table, int* reason):
    cdef Py_ssize_t i
    cdef Plan plan = Plan(table.count)
    plan.context = context
    for i in range(table.count):
        if context.distributed and jm_kind_is_host(table.slots[i].kind):
            reason[0] = CONTEXT    # placing is not for one process to decide
        else:
            reason[0] = _draft_guard(plan, &plan.guards[i], &table.slots[i])
        if reason[0]:
            table.slots[i].action = REFUSED
            return None
    return plan


# --- Second step ---------------------------------------------------------------------------------

cdef bint _is_in_place(jm_guard* guard, object sharding) except -1:
    """Would the reference hand this array to the executable as it is?"""
    found = <object>guard.where
    if found == sharding:
        return True
    if type(found) is not _single_type and type(found) is not _named_type:
        return False
    if found.num_devices != sharding.num_devices or found.memory_kind != sharding.memory_kind:
        return False
    if found.num_devices == 1:
        return found._device_assignment == sharding._device_assignment
    return guard.committed and found.is_equivalent_to(sharding, (<object>guard.aval).ndim)


cdef int _place_argument(jm_guard* guard, jm_slot* slot, object sharding) except -1:
    """Can this argument be handed to the executable, whose input has this sharding?"""
    if jm_kind_is_host(slot.kind):
        if type(sharding) is not _single_type and type(sharding) is not _named_type:
            return EXECUTABLE
        replace_reference(&guard.where, sharding)
        return HIT
    if slot.kind == JM_KEY_ARRAY:
        sharding = private.physical_sharding((<object>slot.obj).aval, sharding)
    if not _is_in_place(guard, sharding):
        return SHARDING
    return LAYOUT if slot.action == CUSTOM_LAYOUT else HIT


cdef bint complete_plan(
    Plan plan, jm_table* table, object xla_executable, object handlers, object kept,
    object shardings, list constants, int* reason
) except -1:
    cdef Py_ssize_t i, n_constants = len(constants) if constants else 0
    cdef Py_ssize_t position = n_constants
    cdef jm_guard* guard
    reason[0] = EXECUTABLE
    if len(kept) != n_constants + plan.count or not all(kept[:n_constants]):
        return False
    if sum(kept) != len(shardings):
        return False
    plan.constants = constants if n_constants else None
    plan.execute = xla_executable.execute_sharded
    plan.handlers = list(handlers)
    plan.inputs = len(shardings)
    for i in range(plan.count):
        guard = &plan.guards[i]
        if kept[n_constants + i]:
            guard.input = position
            reason[0] = _place_argument(guard, &table.slots[i], shardings[position])
            position += 1
        elif jm_kind_is_host(guard.kind):
            replace_reference(&guard.where, None)    # pruned: where it would go does not matter
        if guard.input >= 0 and reason[0]:
            table.slots[i].action = REFUSED
            return False
    reason[0] = HIT
    return True


cdef bint _is_plain(object executable) except -1:
    """Can the executable be run by handing arrays to `execute_sharded` and nothing else?"""
    if type(executable) is not private.ExecuteReplicated:
        return False
    if (
        executable.ordered_effects or executable.has_unordered_effects
        or executable.has_host_callbacks or executable.mut is not None
        or executable.pgle_profiler is not None
    ):
        return False
    in_handler = executable.in_handler
    return (
        type(in_handler) is private.InputsHandler
        and all([wanted is None for wanted in in_handler.in_layouts])
        and type(executable.out_handler) is private.pxla.ResultsHandler
    )


cdef Plan make_plan(
    Context context, jm_table* table, object executable, list constants, int* reason
):
    cdef Plan plan
    reason[0] = EXECUTABLE
    if not _is_plain(executable):
        return None
    plan = draft_plan(context, table, reason)
    if plan is None:
        return None
    kept = [
        i in executable.kept_var_idx
        for i in range(table.count + (len(constants) if constants else 0))
    ]
    if not complete_plan(
        plan, table, executable.xla_executable, executable.out_handler.handlers, kept,
        executable.in_handler.in_shardings, constants, reason
    ):
        return None
    return plan


cdef int record_host_arguments(Plan plan, jm_table* table) except -1:
    cdef Py_ssize_t i
    cdef jm_guard* guard
    cdef TargetPlan target
    for i in range(plan.count):
        guard = &plan.guards[i]
        if jm_kind_is_host(guard.kind):
            ensure_recorded(
                <object>table.slots[i].obj, guard.kind, <object>guard.where, plan.context
            )
            # The object by which all plans find it, whichever equal one each was made with.
            target = find_target(records_of(plan.context), <object>guard.where)
            if target is not None and target.by_sharding:
                replace_reference(&guard.where, target.sharding)
    return 0


cdef bint _share_memory(Plan plan, jm_table* table) except -1:
    """May all host arguments go into a HostBuffer each, but for those that are used up?"""
    cdef Py_ssize_t i
    cdef jm_guard* guard
    cdef jm_slot* slot
    cdef TargetPlan target
    for i in range(plan.count):
        guard, slot = &plan.guards[i], &table.slots[i]
        if not jm_kind_is_host(guard.kind) or guard.input < 0:
            continue
        if guard.donated:
            if plan.only_reused:
                return False
            continue
        target = find_target(records_of(plan.context), <object>guard.where)
        if target is None or resolve_host(slot, target, True):
            return False
        if not shares_memory(slot, target, <object>guard.where):
            return False
    return True


cdef int reuse_host_arguments(Plan plan, jm_table* table) except -1:
    plan.asks_results = True
    plan.reuses = len(plan.handlers) > 0 and _share_memory(plan, table)
    return 0
