"""`jax.make_array_from_process_local_data`: an array of which each process places its own part.

In a program of one process the reference comes to `device_put`, whose records serve here too. With
several it cuts this process's part out of the data, device by device, and talks to no other one.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from jaxmarshal._core.context.configuration cimport Context, current_context, transfers_unguarded
from jaxmarshal._core.placement.records cimport (
    Records, TargetPlan, find_target, process_records_of, put_host, records_of, resolve_host,
    shards_in_python, try_to_record
)
from jaxmarshal._core.values.arguments cimport (
    jm_slot, jm_table, jm_table_free, jm_table_init, set_ready
)
from jaxmarshal._core.values.kinds cimport JM_NDARRAY
from jaxmarshal._core.values.live_objects cimport counters
from jaxmarshal._core.values.trees cimport (
    NEEDS_REGISTRY, Structure, flatten_tree, free_structure, init_structure, rebuild_tree
)
from jaxmarshal._reports.counting cimport (
    CONTEXT, GUARD, HIT, NOT_RECORDED, OPTIONS, TARGET, TREE, UNSUPPORTED, count_hit, count_miss,
    decided_to_hit, enter, entry_number, leave
)

import numpy as np

from jaxmarshal._jax import private

cdef object _make_array = private.make_process_array
cdef object _named_type = private.NamedSharding
cdef object _single_type = private.SingleDeviceSharding
cdef bint _active = private.HAVE_PROCESS_DATA
cdef int _entry = entry_number("make_array_from_process_local_data")


cdef bint _is_plain(object global_shape, object local_data, bint distributed) except -1:
    """Is the global shape None, or a tuple of ints beside a single numpy array?"""
    if global_shape is None:
        return True
    if type(global_shape) is not tuple or type(local_data) is not np.ndarray:
        return False
    if not all([type(n) is int for n in global_shape]):
        return False
    return distributed or global_shape == local_data.shape


cdef int _resolve(Records records, jm_table* table, object sharding) except -1:
    """Resolve every slot: HIT, or why the reference has to do the call. No side effects."""
    cdef Py_ssize_t i
    cdef jm_slot* slot
    cdef object target = sharding
    cdef TargetPlan plan
    cdef int reason
    for i in range(table.count):
        if table.slots[i].kind != JM_NDARRAY:
            return OPTIONS
    for i in range(table.count):
        slot = &table.slots[i]
        if slot.prefix != NULL:
            target = <object>slot.prefix
        if type(target) is not _named_type and type(target) is not _single_type:
            return TARGET
        plan = find_target(records, target)
        if plan is None:
            return NOT_RECORDED
        reason = resolve_host(slot, plan)
        if reason:
            return reason
        Py_INCREF(plan)
        slot.target = <PyObject*>plan
    if not transfers_unguarded(True, False):
        return GUARD
    return HIT if records.cuts_first or shards_in_python() else CONTEXT


cdef int _prepare(
    object sharding, object local_data, Records records, Structure* structure, jm_table* table
) except -1:
    """Flatten and resolve. An error on the way is the reference's to raise, so it is a miss."""
    cdef int reason
    try:
        reason = flatten_tree(local_data, <PyObject*>sharding, structure, table)
        if reason == NEEDS_REGISTRY:
            return TREE
        return reason or _resolve(records, table, sharding)
    except Exception:
        return TREE


cdef int _run(jm_table* table, object sharding) except -1:
    """Put each array; the result replaces what was put."""
    cdef Py_ssize_t i
    cdef jm_slot* slot
    cdef object target = sharding
    for i in range(table.count):
        slot = &table.slots[i]
        if slot.prefix != NULL:
            target = <object>slot.prefix
        set_ready(slot, put_host(slot, <TargetPlan>slot.target, target))
    return 0


cdef object _call_reference(object sharding, object local_data, object global_shape):
    enter()
    try:
        return _make_array(sharding, local_data, global_shape)
    finally:
        leave()


def make_array_from_process_local_data(sharding, local_data, global_shape=None):
    cdef jm_table table
    cdef Structure structure
    cdef Context context = None
    cdef Records records
    cdef int reason = UNSUPPORTED
    if _active:
        context = current_context(&reason)
    if context is not None and not _is_plain(global_shape, local_data, context.distributed):
        reason = OPTIONS
    if reason:
        count_miss(_entry, reason)
        return _call_reference(sharding, local_data, global_shape)
    if context.distributed:
        records = process_records_of(context, global_shape)
    else:
        records = records_of(context)
    jm_table_init(&table, &counters)
    init_structure(&structure)
    try:
        reason = _prepare(sharding, local_data, records, &structure, &table)
        if reason == HIT:
            decided_to_hit(_entry)
            _run(&table, sharding)
            count_hit(_entry)
            return rebuild_tree(&structure, &table.slots.ready, sizeof(jm_slot))
        count_miss(_entry, reason)
        result = _call_reference(sharding, local_data, global_shape)
        if reason == NOT_RECORDED:
            try_to_record(context, records, &table, sharding, result)
        return result
    finally:
        free_structure(&structure)
        jm_table_free(&table)
