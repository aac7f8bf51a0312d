"""Whether a call with data of the host costs less by jaxlib's own C++ than by a plan."""

from jaxmarshal._core.placement.host_data cimport may_share
from jaxmarshal._core.placement.records cimport DONATED, MOST_REUSED
from jaxmarshal._core.plans.call cimport Call, StaticRule, flatten_call
from jaxmarshal._core.plans.plan cimport is_scalar
from jaxmarshal._core.values.arguments cimport jm_slot, jm_table
from jaxmarshal._core.values.kinds cimport JM_NDARRAY, jm_kind_is_host
from jaxmarshal._core.values.trees cimport Structure
from jaxmarshal._reports.counting cimport HIT, HOST_LEAVES

# A call that places host data costs as much more than jaxlib's own as so many arrays save, and so
# many more for each host argument. Measured between other computations, which leave neither way in
# the caches of the processor; alone in a loop, 10 arrays make up for one argument.
cdef Py_ssize_t _arrays_for_host_leaves = 48
cdef Py_ssize_t _arrays_per_host_leaf = 32


cdef bint is_better_in_cpp(jm_table* table, bint keeps_scalars) noexcept:
    cdef Py_ssize_t i, host = 0
    cdef jm_slot* slot
    for i in range(table.count):
        slot = &table.slots[i]
        if not (keeps_scalars and is_scalar(slot.kind) and slot.action != DONATED):
            host += jm_kind_is_host(slot.kind)
    if not host:
        return False
    return _arrays_for_host_leaves + host * _arrays_per_host_leaf > table.count - host


def weigh_host_leaves(first: int, each: int) -> tuple[int, int]:
    """Place host data beside so many arrays, and so many for each; returns what held. For tests."""
    global _arrays_for_host_leaves, _arrays_per_host_leaf
    before = _arrays_for_host_leaves, _arrays_per_host_leaf
    _arrays_for_host_leaves, _arrays_per_host_leaf = first, each
    return before


cdef bint _fit_buffers(jm_table* table) except -1:
    """May all host arguments go into a HostBuffer each?"""
    cdef Py_ssize_t i
    cdef jm_slot* slot
    if not may_share():
        return False
    for i in range(table.count):
        slot = &table.slots[i]
        if slot.action == DONATED:
            return False
        if slot.kind == JM_NDARRAY and not 0 < (<object>slot.obj).nbytes <= MOST_REUSED:
            return False
    return True


cdef int flatten_for_plan(
    Call* call, StaticRule rule, Structure* structure, jm_table* table, frozenset donated,
    bint keeps_scalars
) except -1:
    cdef Py_ssize_t i
    cdef jm_slot* slot
    cdef int reason = flatten_call(call, rule, structure, table)
    for i in range(table.count):
        slot = &table.slots[i]
        if jm_kind_is_host(slot.kind) and (donated is None or slot.number in donated):
            slot.action = DONATED
    if reason == HIT and is_better_in_cpp(table, keeps_scalars) and not _fit_buffers(table):
        return HOST_LEAVES
    return reason
