"""`pxla.shard_args` and `pxla.batched_device_put`: flat arguments, one sharding each."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from jaxmarshal._core.context.configuration cimport Context, current_context, transfers_unguarded
from jaxmarshal._core.placement.records cimport (
    Records, TargetPlan, find_target, put_host, resolve_host, shard_records_of, shards_in_python,
    try_to_record
)
from jaxmarshal._core.values.arguments cimport (
    jm_slot, jm_table, jm_table_free, jm_table_init, push_argument, set_ready
)
from jaxmarshal._core.values.array_words cimport array_sharding, is_gone
from jaxmarshal._core.values.kinds cimport (
    JM_ARRAY, JM_OTHER, classify, jm_kind_is_host, kind_of_unknown
)
from jaxmarshal._core.values.live_objects cimport counters
from jaxmarshal._reports.counting cimport (
    CONTEXT, DELETED, GUARD, HIT, NOT_RECORDED, OPTIONS, SHARDING, TREE, UNSUPPORTED, count_hit,
    count_miss, decided_to_hit, entry_number, reason_of_kind
)

from jaxmarshal._jax import private

cdef object _shard_args = private.shard_args
cdef object _batched_device_put = private.pxla_batched_device_put
cdef object _put = private.batched_device_put
cdef object _reuse = private.REUSE_INPUT
cdef bint _active = private.HAVE_DEVICE_PUT
cdef int _shard_entry = entry_number("shard_args")
cdef int _put_entry = entry_number("batched_device_put")


cdef int _resolve_slot(Records records, jm_slot* slot, object sharding) except -1:
    cdef object array
    cdef TargetPlan plan
    cdef int reason
    if slot.kind == JM_ARRAY:
        array = <object>slot.obj
        if is_gone(array):
            return DELETED
        found = array_sharding(array)
        if found is not sharding and (type(found) is not type(sharding) or found != sharding):
            return SHARDING
        set_ready(slot, array)
        return HIT
    plan = find_target(records, sharding)
    if plan is None:
        return NOT_RECORDED
    reason = resolve_host(slot, plan)
    if reason == HIT:
        Py_INCREF(plan)
        slot.target = <PyObject*>plan
    return reason


cdef int _prepare(
    Records records, object shardings, object layouts, object semantics, object args,
    jm_table* table
) except -1:
    """Fill and resolve the table. Errors on the way are the reference's to raise."""
    cdef int kind, reason
    cdef bint host = False
    cdef Py_ssize_t i, n
    try:
        n = len(args)
        if len(shardings) != n or len(layouts) != n or len(semantics) != n:
            return TREE
        for i in range(n):
            if layouts[i] is not None or semantics[i] is not _reuse:
                return OPTIONS
            x = args[i]
            kind = classify(<PyObject*>x)
            if kind != JM_ARRAY and not jm_kind_is_host(kind):
                return reason_of_kind(kind_of_unknown(x) if kind == JM_OTHER else kind)
            sharding = shardings[i]
            push_argument(table, x, kind, <PyObject*>sharding)
            reason = _resolve_slot(records, &table.slots[i], sharding)
            if reason:
                return reason
            host = host or kind != JM_ARRAY
        if host and not transfers_unguarded(True, False):
            return GUARD
        if host and not shards_in_python():
            return CONTEXT
    except Exception:
        return TREE
    return HIT


cdef list _results(jm_table* table):
    cdef Py_ssize_t i
    cdef jm_slot* slot
    cdef list results = []
    for i in range(table.count):
        slot = &table.slots[i]
        if slot.kind == JM_ARRAY:
            results.append(<object>slot.ready)
        else:
            results.append(put_host(slot, <TargetPlan>slot.target, <object>slot.prefix))
    return results


cdef int _why_not_first(object args) except -1:
    """Why only the reference can take the first argument, by its kind alone; or HIT."""
    cdef int kind
    if type(args) not in (list, tuple) or not args:
        return HIT
    kind = classify(<PyObject*>args[0])
    if kind == JM_ARRAY or kind == JM_OTHER or jm_kind_is_host(kind):
        return HIT
    return reason_of_kind(kind)


def shard_args(shardings, layouts, copy_semantics, args, canonicalize=True):
    cdef jm_table table
    cdef Context context
    cdef Records records
    cdef int reason
    if not _active:
        reason = UNSUPPORTED
    elif canonicalize is not True:
        reason = OPTIONS
    else:
        reason = _why_not_first(args)
        if reason == HIT:
            context = current_context(&reason)
    if reason:
        count_miss(_shard_entry, reason)
        return _shard_args(shardings, layouts, copy_semantics, args, canonicalize)
    records = shard_records_of(context)
    jm_table_init(&table, &counters)
    try:
        reason = _prepare(records, shardings, layouts, copy_semantics, args, &table)
        if reason == HIT:
            decided_to_hit(_shard_entry)
            results = _results(&table)
            count_hit(_shard_entry)
            return results
        count_miss(_shard_entry, reason)
        results = _shard_args(shardings, layouts, copy_semantics, args, canonicalize)
        if reason == NOT_RECORDED and table.count < len(results):
            _fill_up(shardings, args, &table)
        if reason == NOT_RECORDED:
            try_to_record(context, records, &table, None, results)
        return results
    finally:
        jm_table_free(&table)


cdef int _fill_up(object shardings, object args, jm_table* table) except -1:
    """Push the arguments behind the first that was not recorded, as far as they are plain."""
    cdef int kind
    cdef Py_ssize_t i
    for i in range(table.count, len(args)):
        kind = classify(<PyObject*>args[i])
        if kind != JM_ARRAY and not jm_kind_is_host(kind):
            return 0
        push_argument(table, args[i], kind, <PyObject*>shardings[i])
    return 0


def batched_device_put(aval, sharding, xs, devices, committed=True, enable_x64=None):
    cdef Context context = None
    cdef int reason = UNSUPPORTED
    if _active:
        context = current_context(&reason)
    if context is not None:
        if type(xs) is not list or type(devices) not in (list, tuple):
            reason = TREE
        elif len(xs) != len(devices) or not xs:
            reason = TREE
        else:
            for x in xs:
                if not jm_kind_is_host(classify(<PyObject*>x)):
                    reason = reason_of_kind(classify(<PyObject*>x))
                    break
    if reason:
        count_miss(_put_entry, reason)
        return _batched_device_put(aval, sharding, xs, devices, committed, enable_x64)
    decided_to_hit(_put_entry)
    count_hit(_put_entry)
    return _put(aval, sharding, xs, list(devices), committed, enable_x64=enable_x64)
