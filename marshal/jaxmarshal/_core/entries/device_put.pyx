"""`device_put` through the argument table.

A call flattens its tree into the table (one classification, one buffer read an argument), resolves
every argument against the records (the guard, without side effects), and only then calls jaxlib
once an argument. Whatever does not resolve sends the whole call, with its original arguments, to
the reference, whose results are then recorded.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from jaxmarshal._core.context.configuration cimport (
    Context, current_context, is_current, transfers_unguarded
)
from jaxmarshal._core.entries.reshard cimport (
    call_function, is_space, record_functions, resolve_by_function
)
from jaxmarshal._core.placement.records cimport (
    CALL, COPY, MOVE, PUT_HOST, RETURN, UNDECIDED, WRAP, Records, TargetPlan, find_target,
    is_numeric, put_host, records_of, resolve_host, sharding_for, shards_in_python, try_to_record,
    why_not_found
)
from jaxmarshal._core.replay cimport tapes
from jaxmarshal._core.values.arguments cimport (
    jm_slot, jm_table, jm_table_free, jm_table_init, push_argument, set_ready
)
from jaxmarshal._core.values.array_words cimport (
    array_aval, array_committed, array_dtype, array_sharding, is_gone
)
from jaxmarshal._core.values.capi cimport replace_reference
from jaxmarshal._core.values.errors cimport propagate
from jaxmarshal._core.values.kinds cimport (
    JM_ARRAY, JM_KEY_ARRAY, classify, jm_kind_is_argument, jm_kind_is_host
)
from jaxmarshal._core.values.live_objects cimport JM_DEBUG, counters
from jaxmarshal._core.values.shardings cimport are_equal, token_of
from jaxmarshal._core.values.targets cimport is_reached_by_function, is_target
from jaxmarshal._core.values.trees cimport (
    NEEDS_REGISTRY, REGISTRY_NODE, Structure, flatten_tree, flatten_tree_function,
    flatten_by_registry, free_structure, init_structure, rebuild_tree
)
from jaxmarshal._reports.counting cimport (
    CONTEXT, DELETED, DTYPE, GUARD, HIT, KEY_ARRAY, NOT_RECORDED, NO_BACKEND, OPTIONS, TARGET, TREE,
    UNSUPPORTED, count_hit, count_miss, decided_to_hit, enter, entry_number, leave,
    reason_is_about_a_kind, reason_of_kind
)

from jaxmarshal._jax import private

# As its callers see it; see `errors`.
ctypedef int (*resolve_function)(Records, jm_table*, object, int) noexcept

# What a call says of the arrays that it passes.
cdef enum Semantics:
    REUSE
    ALWAYS_COPY
    FOR_JAX    # it says something else

# JAX's objects, bound at import.
cdef object _device_put = private.device_put
cdef object _batched_impl = private.batched_device_put_impl
cdef object _put = private.batched_device_put
cdef object _reuse = private.REUSE_INPUT
cdef object _always_copy = private.ALWAYS_COPY
cdef object _array_type = private.ArrayImpl
cdef object _single_type = private.SingleDeviceSharding
cdef object _named_type = private.NamedSharding
cdef bint _active = private.HAVE_DEVICE_PUT
cdef int _entry = entry_number("device_put")
cdef int _batched_entry = entry_number("batched_device_put_impl")


# --- Resolving: the guard ------------------------------------------------------------------------

cdef inline int _return_itself(jm_slot* slot) noexcept:
    set_ready(slot, <object>slot.obj)
    slot.action = RETURN
    return HIT


cdef inline int _resolve_untargeted(jm_slot* slot, int semantics) except -1:
    """A jax.Array without a target is its own result, or a copy where it lies."""
    cdef object array = <object>slot.obj
    if slot.buffer == NULL:
        return DELETED
    if not is_numeric(array_dtype(array)):
        return DTYPE
    if semantics == REUSE:
        return _return_itself(slot)
    if is_gone(array):
        return DELETED
    cls = type(array_sharding(array))
    if cls is not _single_type and cls is not _named_type:
        return TARGET
    slot.action = MOVE
    return HIT


cdef inline int _resolve_move(jm_slot* slot, TargetPlan plan) except -1:
    cdef object array = <object>slot.obj
    aval = plan.moves.get((token_of(array_sharding(array)), array_aval(array)))
    if aval is None:
        return NOT_RECORDED
    replace_reference(&slot.plan, aval)
    slot.action = MOVE
    return HIT


cdef int _resolve_for_device(
    jm_slot* slot, object target, TargetPlan plan, int semantics
) except -1:
    """The same where the target is a device."""
    cdef object sharding = array_sharding(<object>slot.obj)
    if type(sharding) is _named_type and sharding.num_devices > 1:
        return _resolve_move(slot, plan)
    if type(sharding) is not _single_type:
        return TARGET
    device = sharding._device
    if device is target:
        # Pinned memory of the same device is another place.
        if not are_equal(sharding, plan.sharding):
            return TARGET
        slot.action = COPY if semantics == ALWAYS_COPY else WRAP
    elif device.client is target.client:
        slot.action = COPY
    else:
        return TARGET
    return HIT


cdef int _resolve_array(jm_slot* slot, object target, TargetPlan plan, int semantics) except -1:
    """Decide what becomes of a jax.Array that has a target; `plan` is what was recorded for it.

    A donated array keeps its buffer, which `is_gone` tells from others. Without a buffer the
    other words may be none either: the class can be told to make an array of nothing.
    """
    cdef object array = <object>slot.obj
    cdef object sharding
    if slot.buffer == NULL:
        return DELETED
    sharding = array_sharding(array)
    if not is_numeric(array_dtype(array)):
        return DTYPE
    if (
        semantics == REUSE and plan.is_sharding and array_committed(array)
        and are_equal(sharding, target)
    ):
        return _return_itself(slot)
    if is_gone(array):
        return DELETED
    if plan.is_sharding:
        return _resolve_move(slot, plan)
    return _resolve_for_device(slot, target, plan, semantics)


cdef bint _is_here(jm_slot* slot) except -1:
    """Is an array on devices of this process alone?"""
    return slot.buffer == NULL or array_sharding(<object>slot.obj).is_fully_addressable


cdef int _resolve(Records records, jm_table* table, object device, int semantics) except -1:
    """Resolve every slot: HIT, or why the reference has to do the call. No side effects."""
    cdef Py_ssize_t i
    cdef jm_slot* slot
    cdef object target = device
    cdef TargetPlan plan = None
    cdef bint found = False, host = False, transfer = False
    cdef int reason
    for i in range(table.count):
        slot = &table.slots[i]
        if slot.prefix != NULL:
            target = <object>slot.prefix
            found = False
        if slot.kind == JM_KEY_ARRAY:
            return KEY_ARRAY
        if slot.kind == JM_ARRAY and records.distributed and not _is_here(slot):
            return CONTEXT
        if target is None and slot.kind == JM_ARRAY:
            reason = _resolve_untargeted(slot, semantics)
            if reason:
                return reason
            transfer = transfer or slot.action == MOVE
            continue
        if not found and is_reached_by_function(target):
            reason = resolve_by_function(records, slot, target, semantics)
            if reason:
                return reason
            if slot.action == CALL:
                host = transfer = True
            continue
        if not found:
            plan = find_target(records, target)
            if plan is None:
                return why_not_found(records, target)
            found = True
        if slot.kind == JM_ARRAY:
            reason = _resolve_array(
                slot, sharding_for(plan, target) if plan.of_spec else target, plan, semantics
            )
            transfer = transfer or slot.action == COPY or slot.action == MOVE
        else:
            reason = resolve_host(slot, plan)
            host = True
        if reason:
            return reason
        Py_INCREF(plan)
        slot.target = <PyObject*>plan
    if (host or transfer) and not transfers_unguarded(host, transfer):
        return GUARD
    if host and not shards_in_python():
        return CONTEXT
    return HIT


# --- Running: one jaxlib call an argument --------------------------------------------------------

cdef inline object _how(int semantics):
    """JAX's word for it."""
    return _always_copy if semantics == ALWAYS_COPY else _reuse


cdef int _move_all(jm_table* table, object device, int semantics) except -1:
    """What the reference does with arrays that are moved, or copied where they lie: all at once."""
    cdef Py_ssize_t i, n = 0
    cdef jm_slot* slot
    cdef list arrays = [], shardings = [], handlers = []
    cdef object how = _how(semantics)
    for i in range(table.count):
        slot = &table.slots[i]
        if slot.action != MOVE:
            continue
        array = <object>slot.obj
        sharding, aval, committed = array_sharding(array), array_aval(array), True
        if slot.target == NULL:
            committed = bool(array_committed(array))
        else:
            aval = <object>slot.plan
            sharding = sharding_for(
                <TargetPlan>slot.target, device if slot.prefix == NULL else <object>slot.prefix
            )
        arrays.append(array)
        shardings.append(sharding)
        handlers.append(private.result_handler(aval, sharding, committed))
    moved = private.shard_args(
        shardings, [None] * len(arrays), [how] * len(arrays), arrays
    )
    for i in range(table.count):
        if table.slots[i].action == MOVE:
            set_ready(&table.slots[i], handlers[n](moved[n]))
            n += 1
    return 0


cdef object _run_slot(jm_slot* slot, object target, int semantics):
    cdef TargetPlan plan
    cdef object array
    if slot.action == CALL:
        return call_function(slot, target)
    plan = <TargetPlan>slot.target
    if slot.action == PUT_HOST:
        return put_host(slot, plan, target)
    array = <object>slot.obj
    if slot.action == WRAP:
        return _array_type(
            array_aval(array), plan.sharding, [array], committed=True, _skip_checks=True
        )
    if semantics == ALWAYS_COPY:
        return _put(array_aval(array), plan.sharding, [array], plan.devices, True, True)
    return _put(array_aval(array), plan.sharding, [array], plan.devices, True)


cdef int _run(jm_table* table, object device, int semantics) except -1:
    """Perform the action of every slot; its result replaces `ready`."""
    cdef Py_ssize_t i
    cdef jm_slot* slot
    cdef bint moves = False
    for i in range(table.count):
        slot = &table.slots[i]
        if slot.action == MOVE:
            moves = True
        elif slot.action != RETURN:
            set_ready(slot, _run_slot(
                slot, device if slot.prefix == NULL else <object>slot.prefix, semantics
            ))
    return _move_all(table, device, semantics) if moves else 0


# --- Entry points --------------------------------------------------------------------------------

cdef int _flatten_whole(object x, object device, Structure* structure, jm_table* table) except -1:
    """Flatten a tree that only JAX's registry can.

    Errors of the user's own flatten functions are raised: they have run, and are not run again.
    """
    if not (device is None or is_target(device) or is_reached_by_function(device)):
        return TREE
    free_structure(structure)
    jm_table_free(table)
    init_structure(structure)
    jm_table_init(table, &counters)
    try:
        return flatten_by_registry(x, structure, table)
    except BaseException:
        count_miss(_entry, TREE)
        raise


cdef int _error_is_a_miss() except -1:
    """Drop the error that has just been reported: the reference will raise it, or its own."""
    try:
        propagate()
    except Exception:
        pass
    return TREE


cdef int _prepare(
    object x, object device, int semantics, Context context, Structure* structure,
    jm_table* table
) except -1:
    """Flatten and resolve. An error on the way is the reference's to raise, so it is a miss."""
    cdef int reason = (<flatten_tree_function>flatten_tree)(
        x, NULL if device is None else <PyObject*>device, structure, table
    )
    if reason == NEEDS_REGISTRY:
        reason = _flatten_whole(x, device, structure, table)
        if reason == HIT and not is_current(context):
            reason = CONTEXT    # a flatten function has changed it
    elif reason < 0:
        return _error_is_a_miss()
    if reason:
        return reason
    reason = (<resolve_function>_resolve)(records_of(context), table, device, semantics)
    return _error_is_a_miss() if reason < 0 else reason


cdef inline bint _was_flattened(Structure* structure) noexcept:
    """Has the user's code been run to flatten the tree?"""
    return structure.count == 1 and structure.steps[0].op == REGISTRY_NODE


cdef object _put_by_reference(object x, object device, dict options):
    """With no frame more than this one: on 3.12 a tree without an end ended in another error."""
    enter()
    try:
        return _device_put(x, device, **options)
    finally:
        leave()


cdef object _put_on_tape(object x, object device):
    """As the reference, which `may_alias=True` and None tell the same; a step on a tape."""
    cdef PyObject* args[2]
    result = _put_by_reference(x, device, {})
    args[0], args[1] = <PyObject*>x, <PyObject*>device
    tapes.note(device_put, args, 1 if device is None else 2, NULL, <PyObject*>result)
    return result


cdef int _try_to_record(
    Context context, Records records, jm_table* table, object device, int semantics, object result
) except -1:
    try_to_record(context, records, table, device, result)
    if not is_current(context):
        return 0
    return record_functions(records, table, device, semantics, _how(semantics), result)


cdef object _put_leaves(
    Structure* structure, jm_table* table, object device, int semantics, Context context,
    Records records, int reason, dict options
):
    """The reference's call with the leaves of a tree that was flattened by the registry."""
    cdef Py_ssize_t i
    leaves = [<object>table.slots[i].obj for i in range(table.count)]
    leaves = _put_by_reference(leaves, device, options)
    if reason == NOT_RECORDED:
        _try_to_record(context, records, table, device, semantics, leaves)
    return (<object>structure.steps[0].data).unflatten(leaves)


cdef int _record_call(
    object x, object device, int semantics, Context context, object result
) except -1:
    """Record a call that went to the reference before its arguments were looked at.

    A tree with custom nodes is left to a later call: the reference has run their code already.
    """
    cdef jm_table table
    cdef Structure structure
    cdef Records records = records_of(context)
    jm_table_init(&table, &counters)
    init_structure(&structure)
    try:
        if (
            flatten_tree(
                x, NULL if device is None else <PyObject*>device, &structure, &table
            ) == HIT
            and _resolve(records, &table, device, semantics) == NOT_RECORDED
        ):
            _try_to_record(context, records, &table, device, semantics, result)
    except Exception:
        if JM_DEBUG:
            raise
    finally:
        free_structure(&structure)
        jm_table_free(&table)
    return 0


cdef inline int _semantics(object src, object donate, object may_alias) noexcept:
    """What the options mean for arrays. Host data are put alike, whatever they are.

    Donation is the reference's: some arrays of the CPU client end the process afterwards.
    """
    if src is not None or donate is not False:
        return FOR_JAX
    if may_alias is None or may_alias is True:
        return REUSE
    return ALWAYS_COPY if may_alias is False else FOR_JAX


def device_put(x, device=None, *, src=None, donate=False, may_alias=None):
    cdef jm_table table
    cdef Structure structure
    cdef Context context
    cdef Records records
    cdef int reason, semantics = _semantics(src, donate, may_alias)
    if tapes.current is not None and semantics == REUSE and tapes.is_about_this_thread():
        return _put_on_tape(x, device)
    if not _active:
        reason = UNSUPPORTED
    elif semantics == FOR_JAX:
        reason = OPTIONS
    else:
        context = current_context(&reason)
    if reason:
        count_miss(_entry, reason)
        result = _put_by_reference(
            x, device, {"src": src, "donate": donate, "may_alias": may_alias}
        )
        if reason == NO_BACKEND:
            # The reference may just have initialised the backend: then this call counts.
            context = current_context(&reason)
            if context is not None:
                _record_call(x, device, semantics, context, result)
        return result
    records = records_of(context)
    jm_table_init(&table, &counters)
    init_structure(&structure)
    try:
        reason = _prepare(x, device, semantics, context, &structure, &table)
        if reason == HIT:
            decided_to_hit(_entry)
            _run(&table, device, semantics)
            count_hit(_entry)
            return rebuild_tree(&structure, &table.slots.ready, sizeof(jm_slot))
        count_miss(_entry, reason)
        if _was_flattened(&structure):
            return _put_leaves(
                &structure, &table, device, semantics, context, records, reason,
                {"src": src, "donate": donate, "may_alias": may_alias},
            )
        result = _put_by_reference(
            x, device, {"src": src, "donate": donate, "may_alias": may_alias}
        )
        if reason == NOT_RECORDED:
            _try_to_record(context, records, &table, device, semantics, result)
        return result
    finally:
        free_structure(&structure)
        jm_table_free(&table)


def probe(x, device=None, *, src=None, donate=False, may_alias=None):
    """What `device_put` would do with these arguments: (reason, argument number or -1)."""
    cdef jm_table table
    cdef Structure structure
    cdef Py_ssize_t i
    cdef int reason, semantics = _semantics(src, donate, may_alias)
    cdef Context context
    if not _active:
        return (UNSUPPORTED, -1)
    if semantics == FOR_JAX:
        return (OPTIONS, -1)
    context = current_context(&reason)
    if reason:
        return (reason, -1)
    jm_table_init(&table, &counters)
    init_structure(&structure)
    try:
        reason = _prepare(x, device, semantics, context, &structure, &table)
        if reason == HIT or reason == GUARD or reason == TREE:
            return (reason, -1)
        if reason != KEY_ARRAY and reason_is_about_a_kind(reason):
            # Flattening stopped before that argument, or JAX's registry has flattened them all.
            for i in range(table.count):
                if not jm_kind_is_argument(table.slots[i].kind):
                    return (reason, i)
            return (reason, table.count)
        # Arguments are resolved in order: the first that has no action is the one that failed.
        for i in range(table.count):
            if table.slots[i].action == UNDECIDED:
                return (reason, i)
        return (reason, -1)
    finally:
        free_structure(&structure)
        jm_table_free(&table)


def batched_device_put_impl(*xs, devices, srcs, copy_semantics):
    """`jax._src.dispatch.batched_device_put_impl`: leaves and targets as flat sequences."""
    cdef jm_table table
    cdef Context context
    cdef Records records
    cdef int reason
    if not _active:
        reason = UNSUPPORTED
    elif any([semantics is not _reuse for semantics in copy_semantics]):
        reason = OPTIONS
    else:
        context = current_context(&reason)
    if reason:
        count_miss(_batched_entry, reason)
        return _batched_impl(*xs, devices=devices, srcs=srcs, copy_semantics=copy_semantics)
    records = records_of(context)
    jm_table_init(&table, &counters)
    try:
        reason = _prepare_leaves(xs, devices, records, &table)
        if reason == HIT:
            decided_to_hit(_batched_entry)
            _run(&table, None, REUSE)
            count_hit(_batched_entry)
            return [<object>table.slots[i].ready for i in range(table.count)]
        count_miss(_batched_entry, reason)
        result = _batched_impl(*xs, devices=devices, srcs=srcs, copy_semantics=copy_semantics)
        if reason == NOT_RECORDED:
            _try_to_record(context, records, &table, None, REUSE, result)
        return result
    finally:
        jm_table_free(&table)


cdef int _prepare_leaves(tuple xs, object devices, Records records, jm_table* table) except -1:
    """Like `_prepare`, for a flat sequence with one target each."""
    cdef int kind
    try:
        if len(devices) != len(xs):
            return TREE
        for x, device in zip(xs, devices):
            kind = classify(<PyObject*>x)
            if kind != JM_ARRAY and not jm_kind_is_host(kind):
                return reason_of_kind(kind)
            if is_space(device):
                return TARGET    # `srcs` may be anything
            push_argument(table, x, kind, <PyObject*>device)
        return _resolve(records, table, None, REUSE)
    except Exception:
        return TREE


tapes.put_function = device_put
