"""Keeping and finding records, placing host data by them, and recording the reference's results."""

cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memset

from jaxmarshal._core.context.configuration cimport (
    Context, is_current, state_is, transfers_unguarded
)
from jaxmarshal._core.placement.host_data cimport (
    HostBuffer, aligned_like, are_shared, canonical_array, cast_array, cut_array, hands_on_views,
    is_watched, make_buffer, view_of_base
)
from jaxmarshal._core.values.arguments cimport (
    jm_slot, jm_table, jm_table_free, jm_table_init, push_argument, set_ready
)
from jaxmarshal._core.values.array_words cimport is_gone
from jaxmarshal._core.values.capi cimport replace_reference
from jaxmarshal._core.values.kinds cimport JM_ARRAY, JM_BOOL, JM_NDARRAY, JM_NP_SCALAR
from jaxmarshal._core.values.live_objects cimport JM_DEBUG, counters, jm_counters
from jaxmarshal._core.values.narrowing cimport narrows_silently, scalar_array
from jaxmarshal._core.values.shardings cimport token_of
from jaxmarshal._core.values.targets cimport is_target
from jaxmarshal._reports.counting cimport CONTEXT, HIT, NOT_RECORDED, TARGET, VALUE, is_asked

import numpy as np

from jaxmarshal._jax import private

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    object PyArray_FromScalar(object scalar, void* descr)

cdef extern from *:
    """
    #define JM_COUNT_PLANS(counters, by) JM_COUNT(counters, live_plans, by)
    """
    void JM_COUNT_PLANS(jm_counters* counters, int by) noexcept

cdef enum:
    MAX_TARGETS = 64
    MAX_MOVES = 256

cdef object _device_put = private.device_put
cdef object _put = private.batched_device_put
cdef object _canonical_dtype = private.canonicalize_dtype
cdef object _sharding_in_cpp = private.use_cpp_shard_args
cdef object _dtypes = private.jax_dtypes
cdef object _array_type = private.ArrayImpl
cdef object _device_type = private.Device
cdef object _single_type = private.SingleDeviceSharding
cdef object _named_type = private.NamedSharding
cdef object _spec_type = private.PartitionSpec
cdef object _device_context = private.device_context


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
        free(self.shards)
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
        self.functions = {}
        self.recent = []


cdef Records _make_records(Context context, bint takes_parts=False):
    cdef Records records = Records()
    records.distributed = context.distributed
    records.takes_parts = takes_parts
    return records


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
    for i in range(LEAF_PROBES):
        if target.leaves[(h + i) & (LEAF_TABLE - 1)] == NULL:
            place = (h + i) & (LEAF_TABLE - 1)
            break
    replace_reference(&target.leaves[place], plan)


# --- Finding -------------------------------------------------------------------------------------

cdef Records records_of(Context context):
    if context.device_put_records is None:
        context.device_put_records = _make_records(context)
    return <Records>context.device_put_records


cdef Records shard_records_of(Context context):
    if context.shard_args_records is None:
        context.shard_args_records = _make_records(context, True)
    return <Records>context.shard_args_records


cdef Records stage_records_of(Context context):
    if context.stage_records is None:
        context.stage_records = _make_records(context)
    return <Records>context.stage_records


cdef Records process_records_of(Context context, object global_shape):
    if context.process_records is None or len(context.process_records) > MAX_TARGETS:
        context.process_records = {}
    found = context.process_records.get(global_shape)
    if found is None:
        found = context.process_records[global_shape] = _make_records(context, True)
        (<Records>found).cuts_first = True
    return <Records>found


cdef inline bint _may_be_recorded(object target) noexcept:
    return is_target(target) or type(target) is _spec_type


cdef bint _is_local(object target) except -1:
    """Are all devices of a target this process's?"""
    if target is None:
        return True
    if type(target) is _device_type:
        return target.process_index == target.client.process_index()
    if type(target) is _spec_type:
        target = _named_type(_device_context.value, target)
    return target.is_fully_addressable


cdef int why_not_found(Records records, object target) except -1:
    if type(target) is _spec_type:
        mesh = _device_context.value
        if mesh is None or mesh.empty:
            return TARGET
    elif target is not None and not is_target(target):
        return TARGET
    if records.distributed and not _is_local(target):
        return CONTEXT
    return NOT_RECORDED


cdef inline bint _has_mesh(TargetPlan plan) except -1:
    """Is the mesh that is set the one with which the reference made a sharding of a spec?

    The context tells abstract meshes, of which meshes of other devices may have the same.
    """
    return not plan.of_spec or state_is(_device_context, plan.sharding.mesh)


cdef inline object _key_of(object target):
    """What a record is kept by. A spec says where only together with the mesh that is set."""
    return (target, _device_context.value) if type(target) is _spec_type else target


cdef TargetPlan find_target(Records records, object target):
    """What was recorded for a target, or None. Pointers first, then equality."""
    cdef TargetPlan plan
    if target is None:
        return records.default
    for item in records.recent:
        plan = <TargetPlan>item
        if plan.target is target and _has_mesh(plan):
            return plan
        if plan.by_sharding and plan.sharding is target:
            return plan
    if not _may_be_recorded(target):
        return None
    plan = records.targets.get(_key_of(target))
    if plan is None:
        return None
    if is_asked():
        return plan
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


cdef bint shards_in_python() except -1:
    return _sharding_in_cpp is None or state_is(_sharding_in_cpp, False)


cdef object _host_array(object obj, LeafPlan plan, TargetPlan target, bint direct):
    """The numpy array to put for a numpy array, or None where the reference has to do it.

    JAX's cache is filled where the results keep its entry alive, and asked where it may have one:
    its entries are weak references to the arrays. It has none of parts that are cut first.
    """
    cdef bint watched = not target.cuts_first and is_watched(obj)
    if watched and direct:
        return None    # one device or several: the reference may ask the cache or not
    if plan.narrows and not narrows_silently(obj):
        return None
    if watched or (plan.shards != NULL and not target.cuts_first):
        return canonical_array(obj, plan.typenum, plan.ndim, plan.dims)
    if plan.narrows:
        return cast_array(obj, plan.result_dtype)
    return view_of_base(obj) if target.single and not direct else obj


cdef object _host_scalar(object obj, LeafPlan plan):
    """The same for a numpy scalar."""
    host = PyArray_FromScalar(obj, NULL)
    if not plan.narrows:
        return host
    return cast_array(host, plan.result_dtype) if narrows_silently(host) else None


cdef int resolve_host(jm_slot* slot, TargetPlan target, bint direct=False) except -1:
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
    if slot.kind == JM_NDARRAY:
        host = _host_array(obj, plan, target, direct)
    elif slot.kind == JM_NP_SCALAR:
        host = _host_scalar(obj, plan)
    else:
        host = scalar_array(obj, slot.kind, plan.typenum)
    if host is None:
        return VALUE
    Py_INCREF(plan)
    slot.plan = <PyObject*>plan
    set_ready(slot, host)
    slot.action = PUT_HOST
    return HIT


cdef bint resolve_again(jm_slot* slot) except -1:
    cdef LeafPlan plan
    if slot.kind != JM_NDARRAY or slot.plan == NULL:
        return True
    plan = <LeafPlan>slot.plan
    obj = <object>slot.obj
    if (
        plan.dtype is not <object>cnp.PyArray_DESCR(obj) or plan.ndim != cnp.PyArray_NDIM(obj)
        or (
            plan.ndim != 0
            and memcmp(plan.dims, cnp.PyArray_DIMS(obj), plan.ndim * sizeof(Py_ssize_t)) != 0
        )
    ):
        return False
    if plan.narrows:
        if not narrows_silently(obj):
            return False
        set_ready(slot, cast_array(obj, plan.result_dtype))
    return True


cdef bint is_numeric(object dtype) noexcept:
    cdef char kind = (<cnp.dtype>dtype).kind
    return (
        kind == c"f" or kind == c"i" or kind == c"u" or kind == c"b" or kind == c"c"
        or kind == c"V"
    )


cdef bint is_ordinary_data(object x) except -1:
    dtype = x.dtype
    return dtype.fields is None and is_numeric(dtype) and dtype in _dtypes


cdef list _shards(object host, TargetPlan plan, LeafPlan leaf):
    cdef const Py_ssize_t* starts = leaf.shards
    cdef list shards = []
    if starts == NULL:
        return [view_of_base(host) for _ in range(len(plan.devices))]
    # JAX keeps the array that it cuts. Before 0.9, and where it cuts the argument itself, it keeps
    # what numpy keeps of a part: what the array is a view of.
    owner = (host,) if hands_on_views and not plan.cuts_first else host
    for _ in range(leaf.shard_count):
        shards.append(cut_array(host, owner, starts, starts + leaf.ndim))
        starts += 2 * leaf.ndim
    return shards


cdef object sharding_for(TargetPlan plan, object target):
    if not plan.of_spec:
        return target if plan.is_sharding else plan.sharding
    if plan.sharding.spec is target:
        return plan.sharding
    # Before JAX 0.10 equal specs are several objects, and the result has that of the call.
    return _named_type(plan.sharding.mesh, target)


cdef object put_host(jm_slot* slot, TargetPlan plan, object target, bint copy=False):
    cdef LeafPlan leaf = <LeafPlan>slot.plan
    cdef object host = <object>slot.ready
    cdef object sharding = sharding_for(plan, target)
    cdef object shards
    if plan.single and not plan.cuts_first:
        shards = (host,)    # a tuple: quicker to make than a list
    else:
        shards = _shards(host, plan, leaf)
    if copy:    # the array may not share the memory of a numpy array
        return _put(leaf.aval, sharding, shards, plan.devices, plan.committed, True)
    return _put(leaf.aval, sharding, shards, plan.devices, plan.committed)


cdef object _put_memory(object memory, jm_slot* slot, TargetPlan plan, object target):
    cdef LeafPlan leaf = <LeafPlan>slot.plan
    return _put(leaf.aval, sharding_for(plan, target), (memory,), plan.devices, plan.committed)


cdef bint shares_memory(jm_slot* slot, TargetPlan plan, object target) except -1:
    cdef object host = <object>slot.ready
    if not private.HAVE_REUSE or not plan.single or plan.cuts_first:
        return False
    if not 0 < cnp.PyArray_NBYTES(host) <= MOST_REUSED:
        return False
    memory = aligned_like(host)
    try:
        return are_shared(_put_memory(memory, slot, plan, target), memory)
    except Exception:    # the backend does not tell where data are
        return False


cdef HostBuffer make_host_buffer(jm_slot* slot, TargetPlan plan, object target):
    memory = aligned_like(<object>slot.ready)
    return make_buffer(_put_memory(memory, slot, plan, target), memory)


# --- Recording what the reference returned -------------------------------------------------------

cdef TargetPlan _record_target(
    Context context, Records records, object target, object result
):
    """The TargetPlan for `target`, made from a result the first time; None if unsuitable."""
    cdef TargetPlan plan = find_target(records, target)
    if plan is not None:
        return plan
    if target is not None and not _may_be_recorded(target):
        return None
    sharding = result.sharding
    if not (records.takes_parts or sharding.is_fully_addressable):
        return None
    # Another thread may have set another default device, and set it back.
    if (
        target is None and type(sharding) is _single_type
        and (sharding._device is not private.default_device() or not is_current(context))
    ):
        return None
    plan = TargetPlan()
    plan.of_spec = type(target) is _spec_type
    spec = target.spec if type(target) is _named_type else target if plan.of_spec else None
    if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
        return None
    # The reference makes a sharding of a spec and the mesh that is set.
    if plan.of_spec and (type(sharding) is not _named_type or sharding.spec != target):
        return None
    plan.target = target
    plan.is_sharding = target is not None and type(target) is not _device_type
    plan.sharding = sharding
    plan.by_sharding = plan.is_sharding and not plan.of_spec and bool(sharding == target)
    plan.committed = result.committed
    plan.devices = list(sharding._addressable_device_assignment)
    if not plan.devices:
        return None
    plan.single = sharding.num_devices == 1
    plan.replicated = sharding.is_fully_replicated
    plan.cuts_first = records.cuts_first
    if target is None:
        records.default = plan
    else:
        if len(records.targets) >= MAX_TARGETS:
            records.targets.clear()
            records.recent.clear()
        records.targets[_key_of(target)] = plan
    return plan


cdef list _parts_of_process(TargetPlan plan, tuple whole, tuple shape):
    """Where in the data of this process the parts of its devices are, an index each.

    In a dimension that is as long as that of the whole array, the data have all of it; in another
    one, only what this process's devices have, side by side.
    """
    cdef Py_ssize_t d
    found = plan.sharding.addressable_devices_indices_map(whole)
    parts = [
        [part.indices(n)[:2] for part, n in zip(found[device], whole)] for device in plan.devices
    ]
    for d in range(len(shape)):
        if shape[d] != whole[d]:
            starts = sorted({part[d][0] for part in parts})
            for part in parts:
                length = part[d][1] - part[d][0]
                start = starts.index(part[d][0]) * length
                part[d] = (start, start + length)
    return [[slice(*bounds) for bounds in part] for part in parts]


cdef int _record_shards(LeafPlan leaf, list indices, tuple shape) except -1:
    """Where each shard is in the argument: one slice a dimension, each of step 1."""
    cdef Py_ssize_t i, d, start, stop
    leaf.shard_count = len(indices)
    leaf.shards = <Py_ssize_t*>malloc(
        max(1, 2 * leaf.shard_count * leaf.ndim) * sizeof(Py_ssize_t)
    )
    if leaf.shards == NULL:
        raise MemoryError()
    for i, index in enumerate(indices):
        for d, part in enumerate(index):
            start, stop, _ = part.indices(shape[d])
            leaf.shards[2 * i * leaf.ndim + d] = start
            leaf.shards[(2 * i + 1) * leaf.ndim + d] = stop - start
    return 0


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
    if not isinstance(aval.dtype, np.dtype) or not is_numeric(aval.dtype):
        return 0
    if aval.shape != shape and not (plan.cuts_first and len(aval.shape) == len(shape)):
        return 0
    if dtype is not None and (dtype.fields is not None or not is_numeric(dtype)):
        return 0
    if dtype is not None and _canonical_dtype(dtype) != aval.dtype:
        return 0    # what JAX's cache had for this array is not what others of its kind become
    leaf = LeafPlan(slot.kind, dtype, shape)
    leaf.aval = aval
    leaf.typenum = aval.dtype.num
    leaf.narrows = dtype is not None and dtype != aval.dtype
    leaf.result_dtype = aval.dtype
    if plan.cuts_first:
        _record_shards(leaf, _parts_of_process(plan, aval.shape, shape), shape)
    elif not (plan.replicated or plan.single):
        indices = result.sharding.addressable_devices_indices_map(shape)
        _record_shards(leaf, list(indices.values()), shape)
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
    if slot.buffer == NULL or result is array or is_gone(array):
        return 0
    if not plan.is_sharding and array.sharding.num_devices == 1:
        return 0    # what becomes of it is no matter of records
    if not _moves_by_shard_args(array.sharding, target):
        return 0
    if len(plan.moves) >= MAX_MOVES:
        plan.moves.clear()
    plan.moves[token_of(array.sharding), array.aval] = result.aval
    return 0


cdef int _record(
    Context context, Records records, jm_table* table, object device, object leaves
) except -1:
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
        plan = _record_target(context, records, target, result)
        if plan is None or result.committed is not plan.committed:
            continue
        if result.sharding != sharding_for(plan, target):
            continue
        if slot.kind == JM_ARRAY:
            _record_array(plan, slot, sharding_for(plan, target), result)
        else:
            _record_host(plan, slot, result)
    return 0


cdef int try_to_record(
    Context context, Records records, jm_table* table, object target, object result
) except -1:
    """Record, and never let a failure to do so reach a user whose call has succeeded."""
    try:
        leaves = private.tree_leaves(result)
        if is_current(context):
            _record(context, records, table, target, leaves)
    except Exception:
        if JM_DEBUG:
            raise
    return 0


cdef object _like(object x):
    """Host data of the same type, dtype and shape whose conversion neither warns nor fails."""
    if type(x) is np.ndarray:
        return np.zeros_like(x)
    return x.dtype.type(0) if hasattr(x, "dtype") else type(x)()


cdef int ensure_recorded(object x, int kind, object target, Context context) except -1:
    cdef jm_table table
    cdef Records records = records_of(context)
    cdef TargetPlan plan
    if not transfers_unguarded(True, False):
        return 0    # a guard may log the transfer
    jm_table_init(&table, &counters)
    try:
        push_argument(&table, x, kind, NULL)
        plan = find_target(records, target)
        if plan is None or resolve_host(&table.slots[0], plan) == NOT_RECORDED:
            # What there is to warn of, the reference's own call has warned of.
            with np.errstate(all="ignore"):
                result = _device_put(_like(x), target)
            try_to_record(context, records, &table, target, result)
    except Exception:
        if JM_DEBUG:
            raise
    finally:
        jm_table_free(&table)
    return 0
