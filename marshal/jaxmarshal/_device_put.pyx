"""`device_put` through the argument table.

A call flattens its tree into the table (one classification, one buffer read an argument), resolves
every argument against the records (the guard, without side effects), and only then calls jaxlib
once an argument. Whatever does not resolve sends the whole call, with its original arguments, to
the reference, whose results are then recorded.
"""

cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memset

from jaxmarshal._argtable cimport (
    jm_slot, jm_table, jm_table_free, jm_table_init, push_argument
)
from jaxmarshal._classify cimport (
    JM_ARRAY, JM_BOOL, JM_NDARRAY, JM_NP_SCALAR, classify, jm_kind_is_host
)
from jaxmarshal._context cimport Context, current_context, transfers_unguarded
from jaxmarshal._counters cimport JM_DEBUG, counters, jm_counters
from jaxmarshal._layout cimport array_aval, array_committed, array_dtype, array_sharding
from jaxmarshal._scalars cimport narrows_silently, scalar_array
from jaxmarshal._stats cimport (
    CONTEXT, DELETED, DTYPE, GUARD, HIT, NOT_RECORDED, OPTIONS, TARGET, TREE, UNSUPPORTED, VALUE,
    entries, entry_number, reason_of_kind
)
from jaxmarshal._tree cimport (
    NEEDS_REGISTRY, WHOLE_TREE, Structure, flatten, flatten_by_registry, free_structure,
    init_structure, rebuild
)

import numpy as np

from jaxmarshal import _reference

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    object PyArray_FromScalar(object scalar, void* descr)

cdef extern from *:
    """
    #define JM_COUNT_PLANS(counters, by) JM_COUNT(counters, live_plans, by)
    """
    void JM_COUNT_PLANS(jm_counters* counters, int by) noexcept

cdef enum Action:
    UNDECIDED
    RETURN     # `ready` is set already
    PUT_HOST   # host data to the devices of the target
    WRAP       # an array on the target device: a new array on the same buffer
    COPY       # an array on another device of the same client
    MOVE       # an array to another sharding, as the reference's own shard_args does it

cdef enum:
    MAX_TARGETS = 64
    MAX_MOVES = 256

# JAX's objects, bound at import.
cdef object _device_put = _reference.device_put
cdef object _batched_impl = _reference.batched_device_put_impl
cdef object _put = _reference.batched_device_put
cdef object _canonicalize = _reference.canonicalize_value
cdef object _reuse = _reference.REUSE_INPUT
cdef object _array_type = _reference.ArrayImpl
cdef object _device_type = _reference.Device
cdef object _single_type = _reference.SingleDeviceSharding
cdef object _named_type = _reference.NamedSharding
cdef bint _active = _reference.HAVE_DEVICE_PUT
cdef int _entry = entry_number("device_put")
cdef int _batched_entry = entry_number("batched_device_put_impl")


cdef class LeafPlan:
    def __cinit__(self, int kind, object dtype, tuple shape):
        cdef Py_ssize_t i
        self.kind = kind
        self.dtype = dtype
        self.ndim = len(shape)
        if self.ndim:
            self.dims = <Py_ssize_t*>malloc(self.ndim * sizeof(Py_ssize_t))
            if self.dims == NULL:
                raise MemoryError()
            for i in range(self.ndim):
                self.dims[i] = shape[i]
        JM_COUNT_PLANS(&counters, 1)

    def __dealloc__(self):
        free(self.dims)
        JM_COUNT_PLANS(&counters, -1)


cdef class TargetPlan:
    def __cinit__(self):
        memset(self.leaves, 0, sizeof(self.leaves))
        memset(self.scalars, 0, sizeof(self.scalars))
        self.moves = {}
        JM_COUNT_PLANS(&counters, 1)

    def __dealloc__(self):
        cdef int i
        for i in range(LEAF_TABLE):
            Py_XDECREF(self.leaves[i])
        for i in range(KIND_COUNT):
            Py_XDECREF(self.scalars[i])
        JM_COUNT_PLANS(&counters, -1)


cdef class Records:
    def __cinit__(self):
        self.targets = {}
        self.recent = []


cdef inline size_t _leaf_hash(
    int kind, PyObject* dtype, Py_ssize_t ndim, const Py_ssize_t* dims
) noexcept nogil:
    cdef size_t h = (<uintptr_t>dtype >> 4) ^ (<size_t>kind << 7) ^ <size_t>ndim
    cdef Py_ssize_t i
    for i in range(ndim):
        h = h * <size_t>1000003 ^ <size_t>dims[i]
    return h ^ (h >> 15)


cdef inline PyObject* _find_leaf(
    TargetPlan target, int kind, PyObject* dtype, Py_ssize_t ndim, const Py_ssize_t* dims
) noexcept:
    """The recorded LeafPlan, borrowed, or NULL."""
    cdef size_t h = _leaf_hash(kind, dtype, ndim, dims)
    cdef int i
    cdef PyObject* found
    cdef LeafPlan plan
    for i in range(LEAF_PROBES):
        found = target.leaves[(h + i) & (LEAF_TABLE - 1)]
        if found == NULL:
            return NULL
        plan = <LeafPlan>found
        if (
            <PyObject*>plan.dtype == dtype and plan.kind == kind and plan.ndim == ndim
            and (ndim == 0 or memcmp(plan.dims, dims, ndim * sizeof(Py_ssize_t)) == 0)
        ):
            return found
    return NULL


cdef void _keep_leaf(TargetPlan target, LeafPlan plan) noexcept:
    """Store a plan; where its places are taken, the first of them gives way."""
    cdef size_t h = _leaf_hash(plan.kind, <PyObject*>plan.dtype, plan.ndim, plan.dims)
    cdef int i
    cdef size_t place = h & (LEAF_TABLE - 1)
    cdef PyObject* old
    for i in range(LEAF_PROBES):
        if target.leaves[(h + i) & (LEAF_TABLE - 1)] == NULL:
            place = (h + i) & (LEAF_TABLE - 1)
            break
    old = target.leaves[place]
    Py_INCREF(plan)
    target.leaves[place] = <PyObject*>plan
    Py_XDECREF(old)


# --- Resolving: the guard ------------------------------------------------------------------------

cdef TargetPlan find_target(Records records, object target):
    """What was recorded for a target, or None. Pointers first, then equality."""
    cdef TargetPlan plan
    if target is None:
        return records.default
    for item in records.recent:
        plan = <TargetPlan>item
        if plan.target is target:
            return plan
    if not _is_target(target):
        return None
    plan = records.targets.get(target)
    if plan is None:
        return None
    plan.target = target    # adopt the new pointer
    for item in records.recent:
        if item is plan:
            return plan
    if len(records.recent) < RECENT_TARGETS:
        records.recent.append(plan)
    else:
        records.recent[records.next_recent] = plan
        records.next_recent = (records.next_recent + 1) % RECENT_TARGETS
    return plan


cdef inline bint _is_target(object target) noexcept:
    cdef object cls = type(target)
    return cls is _device_type or cls is _single_type or cls is _named_type


cdef int resolve_host(jm_slot* slot, TargetPlan target) except -1:
    """Find the LeafPlan of a host argument and the host array that goes to the device."""
    cdef object obj = <object>slot.obj
    cdef PyObject* found
    cdef LeafPlan plan
    cdef object dtype, host
    if slot.kind == JM_NDARRAY:
        found = _find_leaf(
            target, JM_NDARRAY, <PyObject*>cnp.PyArray_DESCR(obj), cnp.PyArray_NDIM(obj),
            <const Py_ssize_t*>cnp.PyArray_DIMS(obj),
        )
    elif slot.kind == JM_NP_SCALAR:
        dtype = cnp.PyArray_DescrFromScalar(obj)
        found = _find_leaf(target, JM_NP_SCALAR, <PyObject*>dtype, 0, NULL)
    else:
        found = target.scalars[slot.kind]
    if found == NULL:
        return NOT_RECORDED
    plan = <LeafPlan>found    # owned from here on: anything below may run other code
    if slot.kind >= JM_BOOL:
        host = scalar_array(obj, slot.kind, plan.typenum)
        if host is None:
            return VALUE
    else:
        host = obj if slot.kind == JM_NDARRAY else PyArray_FromScalar(obj, NULL)
        if plan.narrows:
            if not narrows_silently(host):
                return VALUE
            host = _canonicalize(obj)
    Py_INCREF(plan)
    slot.plan = <PyObject*>plan
    Py_INCREF(host)
    slot.ready = <PyObject*>host
    slot.action = PUT_HOST
    return HIT


cdef inline int _return_itself(jm_slot* slot) noexcept:
    Py_INCREF(<object>slot.obj)
    slot.ready = slot.obj
    slot.action = RETURN
    return HIT


cdef inline bint _is_numeric(object dtype) noexcept:
    cdef char kind = (<cnp.dtype>dtype).kind
    return (
        kind == c"f" or kind == c"i" or kind == c"u" or kind == c"b" or kind == c"c"
        or kind == c"V"
    )


cdef inline int _resolve_identity(jm_slot* slot) except -1:
    """A jax.Array without a target is its own result."""
    if slot.buffer == NULL:
        return DELETED
    if not _is_numeric(array_dtype(<object>slot.obj)):
        return DTYPE
    return _return_itself(slot)


cdef int _resolve_array(jm_slot* slot, object target, TargetPlan plan) except -1:
    """Decide what becomes of a jax.Array that has a target; `plan` is what was recorded for it.

    A donated array keeps its buffer, which only `is_deleted` knows to be gone.
    """
    cdef object array = <object>slot.obj
    cdef object sharding = array_sharding(array)
    if slot.buffer == NULL:
        return DELETED
    if not _is_numeric(array_dtype(array)):
        return DTYPE
    if plan.is_sharding:
        if array_committed(array) and (sharding is target or sharding == target):
            return _return_itself(slot)
        if array.is_deleted():
            return DELETED
        if (sharding, array_aval(array)) not in plan.moves:
            return NOT_RECORDED
        slot.action = MOVE
        return HIT
    if array.is_deleted():
        return DELETED
    if type(sharding) is not _single_type:
        return TARGET
    device = sharding._device
    if device is target:
        # Pinned memory of the same device is another place.
        if sharding is not plan.sharding and sharding != plan.sharding:
            return TARGET
        slot.action = WRAP
    elif device.client is target.client:
        slot.action = COPY
    else:
        return TARGET
    return HIT


cdef int _resolve(Records records, jm_table* table, object device) except -1:
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
        if target is None and slot.kind == JM_ARRAY:
            reason = _resolve_identity(slot)
            if reason:
                return reason
            continue
        if not found:
            plan = find_target(records, target)
            if plan is None:
                return NOT_RECORDED if target is None or _is_target(target) else TARGET
            found = True
        if slot.kind == JM_ARRAY:
            reason = _resolve_array(slot, target, plan)
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
    return HIT


# --- Running: one jaxlib call an argument --------------------------------------------------------

cdef object put_host(jm_slot* slot, TargetPlan plan, object target):
    cdef LeafPlan leaf = <LeafPlan>slot.plan
    cdef object host = <object>slot.ready
    cdef object sharding = target if plan.is_sharding else plan.sharding
    cdef list shards
    if plan.single:
        shards = [host]
    elif leaf.indices is None:
        shards = [host] * len(plan.devices)
    else:
        shards = [host[index] for index in leaf.indices]
    return _put(leaf.aval, sharding, shards, plan.devices, plan.committed)


cdef object _move(object array, object target, TargetPlan plan):
    """What the reference does with an array whose sharding has to change."""
    aval = plan.moves[array_sharding(array), array_aval(array)]
    (moved,) = _reference.shard_args([target], [None], [_reuse], [array])
    return _reference.result_handler(aval, target, True)(moved)


cdef object _run_slot(jm_slot* slot, object target):
    cdef TargetPlan plan = <TargetPlan>slot.target
    cdef object array
    if slot.action == PUT_HOST:
        return put_host(slot, plan, target)
    array = <object>slot.obj
    if slot.action == WRAP:
        return _array_type(
            array_aval(array), plan.sharding, [array], committed=True, _skip_checks=True
        )
    if slot.action == COPY:
        return _put(array_aval(array), plan.sharding, [array], plan.devices, True)
    return _move(array, target, plan)


cdef int _run(jm_table* table, object device) except -1:
    """Perform the action of every slot; its result replaces `ready`."""
    cdef Py_ssize_t i
    cdef jm_slot* slot
    cdef PyObject* old
    for i in range(table.count):
        slot = &table.slots[i]
        if slot.action == RETURN:
            continue
        result = _run_slot(slot, device if slot.prefix == NULL else <object>slot.prefix)
        Py_INCREF(result)
        old = slot.ready
        slot.ready = <PyObject*>result
        Py_XDECREF(old)
    return 0


# --- Recording what the reference returned -------------------------------------------------------

cdef TargetPlan _record_target(Records records, object target, object result):
    """The TargetPlan for `target`, made from a result the first time; None if unsuitable."""
    cdef TargetPlan plan = find_target(records, target)
    if plan is not None:
        return plan
    if target is not None and not _is_target(target):
        return None
    sharding = result.sharding
    if not sharding.is_fully_addressable:
        return None
    if type(target) is _named_type and (
        getattr(target.spec, "unreduced", None) or getattr(target.spec, "reduced", None)
    ):
        return None
    plan = TargetPlan()
    plan.target = target
    plan.is_sharding = target is not None and type(target) is not _device_type
    plan.sharding = sharding
    plan.committed = result.committed
    plan.devices = list(sharding._addressable_device_assignment)
    plan.single = len(plan.devices) == 1
    plan.replicated = sharding.is_fully_replicated
    if target is None:
        records.default = plan
    else:
        if len(records.targets) >= MAX_TARGETS:
            records.targets.clear()
            records.recent.clear()
        records.targets[target] = plan
    return plan


cdef int _record_host(TargetPlan plan, jm_slot* slot, object result) except -1:
    cdef object obj = <object>slot.obj
    cdef LeafPlan leaf
    cdef object dtype = None
    cdef tuple shape = ()
    if slot.kind == JM_NDARRAY:
        dtype = obj.dtype
        shape = obj.shape
    elif slot.kind == JM_NP_SCALAR:
        dtype = cnp.PyArray_DescrFromScalar(obj)
    aval = result.aval
    if aval.shape != shape or not isinstance(aval.dtype, np.dtype) or not _is_numeric(aval.dtype):
        return 0
    if dtype is not None and (dtype.fields is not None or not _is_numeric(dtype)):
        return 0
    leaf = LeafPlan(slot.kind, dtype, shape)
    leaf.aval = aval
    leaf.typenum = aval.dtype.num
    leaf.narrows = dtype is not None and dtype != aval.dtype
    if not plan.replicated:
        leaf.indices = tuple(
            result.sharding.addressable_devices_indices_map(shape).values()
        )
    if slot.kind >= JM_BOOL:
        if plan.scalars[slot.kind] == NULL:
            Py_INCREF(leaf)
            plan.scalars[slot.kind] = <PyObject*>leaf
    else:
        _keep_leaf(plan, leaf)
    return 0


cdef bint _moves_by_shard_args(object source, object target) except -1:
    """Does the reference move an array between these shardings with `shard_args` alone?"""
    if type(source) is not _single_type and type(source) is not _named_type:
        return False
    if not (source.is_fully_addressable and target.is_fully_addressable):
        return False
    return (
        target.num_devices == 1
        or source._internal_device_list == target._internal_device_list
        or source.device_set != target.device_set
    )


cdef int _record_array(TargetPlan plan, jm_slot* slot, object target, object result) except -1:
    cdef object array = <object>slot.obj
    if not plan.is_sharding or slot.buffer == NULL or result is array or array.is_deleted():
        return 0
    if not _moves_by_shard_args(array.sharding, target):
        return 0
    if len(plan.moves) >= MAX_MOVES:
        plan.moves.clear()
    plan.moves[array.sharding, array.aval] = result.aval
    return 0


cdef int _record(Records records, jm_table* table, object device, object leaves) except -1:
    """Record the reference's results for the arguments in the table, where they are plain."""
    cdef Py_ssize_t i
    cdef jm_slot* slot
    cdef TargetPlan plan
    if len(leaves) != table.count:
        return 0
    for i in range(table.count):
        slot = &table.slots[i]
        result = leaves[i]
        target = device if slot.prefix == NULL else <object>slot.prefix
        if slot.action or type(result) is not _array_type:
            continue
        if target is None and slot.kind == JM_ARRAY:
            continue
        plan = _record_target(records, target, result)
        if plan is None or result.committed is not plan.committed:
            continue
        if result.sharding != (target if plan.is_sharding else plan.sharding):
            continue
        if slot.kind == JM_ARRAY:
            _record_array(plan, slot, target, result)
        else:
            _record_host(plan, slot, result)
    return 0


# --- Entry points --------------------------------------------------------------------------------

cdef Records records_of(Context context):
    if context.device_put_records is None:
        context.device_put_records = Records()
    return <Records>context.device_put_records


cdef Records shard_records_of(Context context):
    if context.shard_args_records is None:
        context.shard_args_records = Records()
    return <Records>context.shard_args_records


cdef int _prepare(
    object x, object device, Records records, Structure* structure, jm_table* table
) except -1:
    """Flatten and resolve. An error on the way is the reference's to raise, so it is a miss.

    The exception are errors of the user's own flatten functions: they have run, and are not run
    again.
    """
    cdef int reason
    try:
        reason = flatten(x, NULL if device is None else <PyObject*>device, structure, table)
    except Exception:
        return TREE
    if reason == NEEDS_REGISTRY:
        if device is not None and not _is_target(device):
            return TREE
        free_structure(structure)
        jm_table_free(table)
        init_structure(structure)
        jm_table_init(table, &counters)
        try:
            reason = flatten_by_registry(x, structure, table)
        except BaseException:
            entries[_entry].misses[<int>TREE] += 1
            raise
    if reason:
        return reason
    try:
        return _resolve(records, table, device)
    except Exception:
        return TREE


cdef inline bint _was_flattened(Structure* structure) noexcept:
    """Has the user's code been run to flatten the tree?"""
    return structure.count == 1 and structure.steps[0].op == WHOLE_TREE


cdef object _put_leaves(
    Structure* structure, jm_table* table, object device, Records records, int reason,
    dict options
):
    """The reference's call with the leaves of a tree that was flattened by the registry."""
    cdef Py_ssize_t i
    leaves = [<object>table.slots[i].obj for i in range(table.count)]
    leaves = _device_put(leaves, device, **options)
    if reason == NOT_RECORDED:
        try_to_record(records, table, device, leaves)
    return (<object>structure.steps[0].data).unflatten(leaves)


cdef int try_to_record(Records records, jm_table* table, object target, object result) except -1:
    """Record, and never let a failure to do so reach a user whose call has succeeded."""
    try:
        _record(records, table, target, _reference.tree_leaves(result))
    except Exception:
        if JM_DEBUG:
            raise
    return 0


cdef int _record_call(object x, object device, Records records, object result) except -1:
    """Record a call that went to the reference before its arguments were looked at.

    A tree with custom nodes is left to a later call: the reference has run their code already.
    """
    cdef jm_table table
    cdef Structure structure
    jm_table_init(&table, &counters)
    init_structure(&structure)
    try:
        if (
            flatten(x, NULL if device is None else <PyObject*>device, &structure, &table) == HIT
            and _resolve(records, &table, device) == NOT_RECORDED
        ):
            try_to_record(records, &table, device, result)
    except Exception:
        if JM_DEBUG:
            raise
    finally:
        free_structure(&structure)
        jm_table_free(&table)
    return 0


cdef int ensure_recorded(object x, int kind, object target, Context context) except -1:
    cdef jm_table table
    cdef Records records = records_of(context)
    cdef TargetPlan plan
    jm_table_init(&table, &counters)
    try:
        push_argument(&table, x, kind, NULL)
        plan = find_target(records, target)
        if plan is None or resolve_host(&table.slots[0], plan) == NOT_RECORDED:
            try_to_record(records, &table, target, _device_put(x, target))
    except Exception:
        if JM_DEBUG:
            raise
    finally:
        jm_table_free(&table)
    return 0


cdef inline bint _has_plain_options(object src, object donate, object may_alias) noexcept:
    return src is None and donate is False and (may_alias is None or may_alias is True)


def device_put(x, device=None, *, src=None, donate=False, may_alias=None):
    cdef jm_table table
    cdef Structure structure
    cdef Context context
    cdef Records records
    cdef int reason
    if not _active:
        reason = UNSUPPORTED
    elif not _has_plain_options(src, donate, may_alias):
        reason = OPTIONS
    else:
        context = current_context(&reason)
    if reason:
        entries[_entry].misses[reason] += 1
        result = _device_put(x, device, src=src, donate=donate, may_alias=may_alias)
        if reason == CONTEXT:
            # The reference may just have initialised the backend: then this call counts.
            context = current_context(&reason)
            if context is not None:
                _record_call(x, device, records_of(context), result)
        return result
    records = records_of(context)
    jm_table_init(&table, &counters)
    init_structure(&structure)
    try:
        reason = _prepare(x, device, records, &structure, &table)
        if reason == HIT:
            _run(&table, device)
            entries[_entry].hits += 1
            return rebuild(&structure, &table)
        entries[_entry].misses[reason] += 1
        if _was_flattened(&structure):
            return _put_leaves(
                &structure, &table, device, records, reason,
                {"src": src, "donate": donate, "may_alias": may_alias},
            )
        result = _device_put(x, device, src=src, donate=donate, may_alias=may_alias)
        if reason == NOT_RECORDED:
            try_to_record(records, &table, device, result)
        return result
    finally:
        free_structure(&structure)
        jm_table_free(&table)


def probe(x, device=None, *, src=None, donate=False, may_alias=None):
    """What `device_put` would do with these arguments: (reason, argument number or -1)."""
    cdef jm_table table
    cdef Structure structure
    cdef Py_ssize_t i
    cdef int reason
    cdef Context context
    if not _active:
        return (UNSUPPORTED, -1)
    if not _has_plain_options(src, donate, may_alias):
        return (OPTIONS, -1)
    context = current_context(&reason)
    if reason:
        return (reason, -1)
    jm_table_init(&table, &counters)
    init_structure(&structure)
    try:
        reason = _prepare(x, device, records_of(context), &structure, &table)
        if reason == HIT or reason == GUARD:
            return (reason, -1)
        # Arguments are resolved in order: the first that has no action is the one that failed.
        for i in range(table.count):
            if table.slots[i].action == UNDECIDED:
                return (reason, i)
        return (reason, table.count)
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
        entries[_batched_entry].misses[reason] += 1
        return _batched_impl(*xs, devices=devices, srcs=srcs, copy_semantics=copy_semantics)
    records = records_of(context)
    jm_table_init(&table, &counters)
    try:
        reason = _prepare_leaves(xs, devices, records, &table)
        if reason == HIT:
            _run(&table, None)
            entries[_batched_entry].hits += 1
            return [<object>table.slots[i].ready for i in range(table.count)]
        entries[_batched_entry].misses[reason] += 1
        result = _batched_impl(*xs, devices=devices, srcs=srcs, copy_semantics=copy_semantics)
        if reason == NOT_RECORDED:
            try_to_record(records, &table, None, result)
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
            push_argument(table, x, kind, <PyObject*>device)
        return _resolve(records, table, None)
    except Exception:
        return TREE
