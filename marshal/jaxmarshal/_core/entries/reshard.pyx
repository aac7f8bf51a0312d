"""`device_put` to a `Format` or to a memory space, which the reference does by jitted functions.

For a `Format` it makes a jitted identity in each call; for a memory space it looks up the jitted
function of `device_put_p`, by the target and the sharding of the source. Either is kept here beside
what it was called with, and called as the reference calls it: what runs is the reference's own.
"""

cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from jaxmarshal._core.placement.records cimport CALL, RETURN, Records, is_numeric, is_ordinary_data
from jaxmarshal._core.values.arguments cimport jm_slot, jm_table, set_ready
from jaxmarshal._core.values.array_words cimport (
    array_aval, array_committed, array_dtype, array_sharding, is_gone
)
from jaxmarshal._core.values.kinds cimport JM_ARRAY, JM_INT, JM_NDARRAY
from jaxmarshal._core.values.live_objects cimport JM_DEBUG
from jaxmarshal._core.values.narrowing cimport scalar_array
from jaxmarshal._core.values.targets cimport is_reached_by_function
from jaxmarshal._reports.counting cimport CONTEXT, DELETED, DTYPE, HIT, NOT_RECORDED, TARGET, VALUE

import numpy as np

from jaxmarshal._core.entries import jit
from jaxmarshal._jax import private

cdef enum:
    MAX_FUNCTIONS = 256

cdef object _array_type = private.ArrayImpl
cdef object _format_type = private.Format
cdef object _layout_type = private.Layout
cdef object _space_type = private.MemorySpace
cdef object _single_type = private.SingleDeviceSharding
cdef object _named_type = private.NamedSharding
cdef object _identity = private.reshard_identity
cdef object _callable_of = private.xla_primitive_callable
cdef object _primitive = private.device_put_primitive


cdef bint is_space(object target) noexcept:
    return is_reached_by_function(target) and type(target) is _space_type


cdef tuple _key(jm_slot* slot, object target, int semantics):
    """By what the function for an argument is known."""
    cdef object x = <object>slot.obj
    if slot.kind == JM_ARRAY:
        # An array that lies as a Format says is the result itself.
        where = x.format if type(target) is _format_type else array_sharding(x)
        return (target, semantics, where, array_aval(x), bool(array_committed(x)))
    if slot.kind == JM_NDARRAY:
        return (target, semantics, np.ndarray, x.dtype, x.shape)
    return (target, semantics, type(x))


cdef int _why_never(jm_slot* slot, object target) except -1:
    """HIT, or why no function is kept for such an argument."""
    cdef object x = <object>slot.obj
    if slot.kind != JM_ARRAY:
        if type(target) is _format_type and target.layout is None:
            return TARGET    # the reference places host data as on a sharding
        if slot.kind == JM_INT and scalar_array(x, JM_INT, cnp.NPY_INT32) is None:
            return VALUE    # before it calls the function, the reference says that it is too large
        return HIT if slot.kind != JM_NDARRAY or is_ordinary_data(x) else DTYPE
    if slot.buffer == NULL:
        return DELETED
    if not is_numeric(array_dtype(x)):
        return DTYPE
    return DELETED if is_gone(x) else HIT


cdef int resolve_by_function(
    Records records, jm_slot* slot, object target, int semantics
) except -1:
    cdef int reason
    if records.distributed:
        return CONTEXT
    reason = _why_never(slot, target)
    if reason:
        return reason
    function = records.functions.get(_key(slot, target, semantics), records)
    if function is records:
        return NOT_RECORDED
    if function is None:    # the reference returned the argument itself
        set_ready(slot, <object>slot.obj)
        slot.action = RETURN
    else:
        Py_INCREF(function)
        slot.target = <PyObject*>function
        slot.action = CALL
    return HIT


cdef object call_function(jm_slot* slot, object target):
    result = (<object>slot.target)(<object>slot.obj)
    return result[0] if type(target) is _space_type else result


cdef object _function_for(object target, object x, object how):
    """What the reference calls."""
    # For host data the reference may name a source where a mesh is set, which changes no result.
    if type(target) is _format_type:
        return jit.jit(_identity, out_shardings=target, donate_argnums=None)
    return jit.of_primitive(_callable_of(
        _primitive, devices=(target,), srcs=(getattr(x, "sharding", None),), copy_semantics=(how,)
    ))


cdef bint _is_plain(object target) except -1:
    """A memory space, or a Format on devices of this process."""
    if type(target) is _space_type:
        return True
    sharding = target.sharding
    return (
        (type(sharding) is _single_type or type(sharding) is _named_type)
        and (target.layout is None or type(target.layout) is _layout_type)
        and sharding.is_fully_addressable
    )


cdef int _record(
    Records records, jm_table* table, object device, int semantics, object how, list leaves
) except -1:
    cdef Py_ssize_t i
    cdef jm_slot* slot
    if records.distributed or len(leaves) != table.count:
        return 0
    for i in range(table.count):
        slot = &table.slots[i]
        target = device if slot.prefix == NULL else <object>slot.prefix
        if slot.action or not is_reached_by_function(target) or not _is_plain(target):
            continue
        if type(leaves[i]) is not _array_type or _why_never(slot, target):
            continue
        x = <object>slot.obj
        if len(records.functions) >= MAX_FUNCTIONS:
            records.functions.clear()
        key = _key(slot, target, semantics)
        records.functions[key] = None if leaves[i] is x else _function_for(target, x, how)
    return 0


cdef int record_functions(
    Records records, jm_table* table, object device, int semantics, object how, object result
) except -1:
    try:
        _record(records, table, device, semantics, how, private.tree_leaves(result))
    except Exception:
        if JM_DEBUG:
            raise
    return 0
