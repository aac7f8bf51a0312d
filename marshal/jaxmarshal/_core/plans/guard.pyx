"""Comparing arguments with what a plan was recorded for."""

from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_New

from jaxmarshal._core.placement.records cimport (
    LeafPlan, TargetPlan, find_target, records_of, resolve_host
)
from jaxmarshal._core.plans.intake cimport jm_guard, jm_intake
from jaxmarshal._core.plans.plan cimport Plan, is_kept, take_kept_scalar
from jaxmarshal._core.values.arguments cimport (
    JM_COUNT_BUFFER_READ, jm_slot, jm_table, jm_table_clear, push_argument, set_ready
)
from jaxmarshal._core.values.array_words cimport (
    array_aval, array_buffer, array_committed, array_sharding, jm_buffer_is_donated,
    jm_buffer_layout_is_default, layout
)
from jaxmarshal._core.values.capi cimport jm_tuple_items, replace_reference
from jaxmarshal._core.values.kinds cimport (
    JM_ARRAY, JM_KEY_ARRAY, JM_NDARRAY, JM_NP_SCALAR, Py_TYPE, classify, jm_kind_is_argument,
    jm_kind_is_host, jm_kind_of_type, types
)
from jaxmarshal._core.values.live_objects cimport counters
from jaxmarshal._core.values.shardings cimport are_equal
from jaxmarshal._reports.counting cimport (
    AVAL, COMMITTED, DELETED, HIT, KEY_ARRAY, LAYOUT, NOT_RECORDED, SHARDING, is_asked
)

from jaxmarshal._jax import private

# As `jm_intake` holds it; see `errors`.
ctypedef int (*look_function)(jm_intake*, PyObject*) noexcept

cdef object _array_type = private.ArrayImpl
cdef object _key_type = private.PRNGKeyArray


cdef inline bint _same(PyObject** recorded, object found) except -1:
    """By pointer first; then by equality, which makes `found` the recorded object."""
    cdef object known
    if recorded[0] == <PyObject*>found:
        return True
    known = <object>recorded[0]    # held: a comparison may let another thread adopt a pointer
    if not are_equal(known, found):
        return False
    if not is_asked():
        replace_reference(recorded, found)
    return True


cdef int _check_array(jm_intake* intake, jm_guard* guard, object array) except -1:
    cdef void* buffer
    if array_buffer(array) == NULL:
        return DELETED    # or never filled: then it has no aval either
    if not _same(&guard.aval, array_aval(array)):
        return AVAL
    if not _same(&guard.where, array_sharding(array)):
        return SHARDING
    if array_committed(array) != guard.committed:
        return COMMITTED
    # Read here: what was just compared may have run code that deletes arrays.
    buffer = array_buffer(array)
    JM_COUNT_BUFFER_READ(&counters)
    if buffer == NULL:
        return DELETED
    if guard.input >= 0 and not jm_buffer_layout_is_default(intake.layout, buffer):
        return LAYOUT
    if guard.input >= 0 and jm_buffer_is_donated(intake.layout, buffer):
        return DELETED    # found out here, for XLA logs a line where it finds out
    return HIT


cdef int _check_key(jm_intake* intake, jm_guard* guard, jm_slot* slot) except -1:
    """A typed key is its implementation and a base array, which goes to the executable."""
    cdef object key = <object>slot.obj
    if not take_base_array(slot):
        return KEY_ARRAY
    if <PyObject*>key._impl != guard.impl:
        return AVAL
    return _check_array(intake, guard, <object>slot.ready)


cdef bint take_base_array(jm_slot* slot) except -1:
    base = (<object>slot.obj)._base_array
    if type(base) is not _array_type:
        return False
    slot.buffer = array_buffer(base)
    set_ready(slot, base)
    return True


cdef inline bint _is_alike(jm_guard* guard, object aval) except -1:
    """Is this aval of host data the recorded one? By pointer first, as in `_same`."""
    cdef object wanted
    if guard.aval == <PyObject*>aval:
        return True
    wanted = <object>guard.aval
    if (
        aval.dtype != wanted.dtype or aval.shape != wanted.shape
        or aval.weak_type != wanted.weak_type
    ):
        return False
    if not is_asked():
        replace_reference(&guard.aval, aval)
    return True


cdef int _check_host(Plan plan, jm_guard* guard, jm_slot* slot) except -1:
    cdef TargetPlan target
    cdef int reason
    if is_kept(plan, slot) and take_kept_scalar(plan, slot):
        return HIT
    target = find_target(records_of(plan.context), <object>guard.where)
    if target is None:
        return NOT_RECORDED
    reason = resolve_host(slot, target, True)
    if reason:
        return reason
    if not _is_alike(guard, (<LeafPlan>slot.plan).aval):
        return AVAL
    Py_INCREF(target)
    slot.target = <PyObject*>target
    return HIT


cdef inline void _set_input(jm_intake* intake, jm_guard* guard, PyObject* array) noexcept:
    if guard.input >= 0:
        Py_INCREF(<object>array)
        intake.inputs[guard.input] = array


cdef int _take_array(jm_intake* intake, object array) except -1:
    cdef int reason = _check_array(intake, intake.guard, array)
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
        return _check_host(<Plan>intake.plan, guard, slot)
    reason = _check_key(intake, guard, slot)
    if reason == HIT:
        _set_input(intake, guard, slot.ready)
    return reason


cdef int _look(jm_intake* intake, PyObject* obj) except -1:
    """Look closer at an argument whose words did not match; see `jm_intake`."""
    cdef int kind = classify(obj), wanted = intake.guard.kind, reason
    if not jm_kind_is_argument(kind):
        return 0
    if (<Plan>intake.plan).filtered and jm_kind_is_host(kind) and (
        kind != JM_NDARRAY and kind != JM_NP_SCALAR
    ):
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


cdef int begin_guard(Plan plan, jm_intake* intake, jm_table* table, bint by_pointer) except -1:
    cdef Py_ssize_t i
    cdef tuple inputs = PyTuple_New(plan.inputs)    # quicker to make than a list
    Py_INCREF(inputs)
    intake.tuple = <PyObject*>inputs
    intake.inputs = jm_tuple_items(inputs)
    intake.layout = plan.words
    if plan.words == NULL:    # it has no arrays
        intake.layout = &layout
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


cdef void end_guard(jm_intake* intake) noexcept:
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
        return (number, <object>guard.aval, private.abstractify(found))
    if reason == SHARDING:
        return (number, <object>guard.where, found.sharding)
    if reason == COMMITTED:
        return (number, bool(guard.committed), found.committed)
    if reason == LAYOUT:
        return (number, "the default layout", found.format.layout)
    if reason == DELETED:
        return (number, "a live array", "a deleted array")
    return (number, None, type(found))
