"""Arrays of host data: the primitive `stage`, and functions of `jax.numpy` that come to it.

To stage is one put that copies. `jnp.asarray` and `jnp.array` look at their arguments in Python and
then stage most host data as it is. Whether they do is seen, not assumed: a tape notes what the
reference does with data of one kind, dtype and shape in one context. If it returns what staging its
very argument returned, the next such call stages.

Of a list of Python's numbers the reference makes an array as numpy does, of JAX's dtype. That
staging an array of numpy's has the same result (aval, sharding, committed) is seen, too.
"""

from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.math cimport fabs, isfinite
from libc.stdint cimport uintptr_t

from jaxmarshal._core.context.bypassed cimport (
    function_rules, is_untouched, stage_is_untouched, stage_is_untouched_function
)
from jaxmarshal._core.context.configuration cimport Context, is_current, transfers_unguarded
from jaxmarshal._core.entries.public_functions cimport (
    Row, call_row, call_row_function, is_converted_as_before
)
from jaxmarshal._core.placement.host_data cimport let_go_of
from jaxmarshal._core.placement.records cimport (
    KIND_COUNT, LeafPlan, Records, TargetPlan, find_target, is_ordinary_data, put_host,
    resolve_host, stage_records_of, try_to_record
)
from jaxmarshal._core.plans.jit_configuration cimport staging_context
from jaxmarshal._core.replay cimport tapes
from jaxmarshal._core.replay.key cimport HOST
from jaxmarshal._core.replay.tapes cimport Tape, is_result_of, start_tape, stop_tape
from jaxmarshal._core.values.arguments cimport jm_table, jm_table_free, jm_table_init, push_argument
from jaxmarshal._core.values.array_words cimport (
    array_aval, array_committed, array_dtype, array_sharding
)
from jaxmarshal._core.values.capi cimport (
    PyErr_Occurred, PyList_CheckExact, PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
)
from jaxmarshal._core.values.kinds cimport (
    JM_BOOL, JM_FLOAT, JM_INT, JM_NDARRAY, JM_NP_SCALAR, Py_TYPE, jm_kind_is_host, jm_kind_of_type,
    types
)
from jaxmarshal._core.values.live_objects cimport JM_DEBUG, counters
from jaxmarshal._core.values.methods cimport PyVectorcall_NARGS, make_method, vectorcallfunc
from jaxmarshal._core.values.shardings cimport are_equal
from jaxmarshal._reports.counting cimport (
    GUARD, HIT, NOT_RECORDED, REPLACED, count_hit, count_miss, decided_to_hit, enter, entry_number,
    is_asked, leave, perform
)

import numpy as np

from jaxmarshal._jax import private

cdef extern from *:
    PyObject* PySequence_Fast_GET_ITEM(PyObject* list, Py_ssize_t i) noexcept
    Py_ssize_t PySequence_Fast_GET_SIZE(PyObject* list) noexcept
    void PyErr_Fetch(PyObject** cls, PyObject** value, PyObject** traceback) noexcept
    void PyErr_Restore(PyObject* cls, PyObject* value, PyObject* traceback) noexcept

# As their callers see them; see `errors`.
ctypedef PyObject* (*take_function)(PyObject*, int, Context, int, int, int*, PyObject**) noexcept
ctypedef PyObject* (*watch_function)(LeafPlan, int, PyObject*, PyObject**, size_t) noexcept
ctypedef PyObject* (*list_function)(int, Row, object, PyObject**, size_t, PyObject*) noexcept
ctypedef PyObject* (*call_function)(int, Row, PyObject**, size_t, PyObject*) noexcept

cdef enum:    # flags of `LeafPlan.staged_by`
    BY_ASARRAY = 1
    BY_ARRAY = 2
    OF_LISTS = 4    # times one of them

cdef enum:
    MOST_WATCHED = 8    # calls that did more than to stage; then no more are watched
    MOST_NESTED = 4     # lists in lists
    MOST_LISTS = 4096       # of different lengths
    MOST_LEARNED = 300      # of them, more than records hold; learning takes as long as a call

cdef double LEAST_FLOAT, MOST_FLOAT    # between them, and 0, any dtype can hold a float
LEAST_FLOAT, MOST_FLOAT = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

cdef object _stage_primitive = private.stage_primitive
cdef object _array_type = private.ArrayImpl
cdef bint _have_rules = private.HAVE_REPLAY    # of lists, as of functions
cdef object _asarray = private.jnp_asarray
cdef object _array = private.jnp_array
cdef Row _asarray_row = Row(entry_number("asarray"), _asarray)
cdef Row _array_row = Row(entry_number("array"), _array)
_asarray_row.host = _array_row.host = HOST


cdef PyObject* _stage(
    PyObject* x, int kind, Context context, int entry, int by, int* reason, PyObject** unseen
) except? NULL:
    """The array, a new reference; or NULL with a reason.

    `unseen` is then the LeafPlan, owned, of data that `by` was not seen to stage; else unchanged.
    """
    cdef jm_table table
    cdef TargetPlan target = find_target(stage_records_of(context), None)
    cdef PyObject* result = NULL
    reason[0] = NOT_RECORDED
    if target is None:
        return NULL
    if kind == JM_NDARRAY:
        let_go_of(<object>x)    # the reference comes past jaxlib before it asks its cache
    jm_table_init(&table, &counters)
    try:
        push_argument(&table, <object>x, kind, NULL)
        reason[0] = resolve_host(&table.slots[0], target)
        if reason[0] == HIT and by & ~(<LeafPlan>table.slots[0].plan).staged_by:
            reason[0] = NOT_RECORDED
            unseen[0] = table.slots[0].plan
            Py_INCREF(<object>unseen[0])
        if reason[0] == HIT and not transfers_unguarded(True, False):
            reason[0] = GUARD
        if reason[0] == HIT:
            decided_to_hit(entry)
            made = put_host(&table.slots[0], target, None, True)
            Py_INCREF(made)
            result = <PyObject*>made
    finally:
        jm_table_free(&table)
    return result


cdef PyObject* _counted(int entry, PyObject* x, PyObject* result) except? NULL:
    """The array that `x` was staged as, after a hit was counted, and noted on a tape."""
    if tapes.current is not None:
        tapes.note_primitive(<PyObject*>_stage_primitive, NULL, NULL)
        tapes.note(stage_function, &x, 1, NULL, result)
    count_hit(entry)
    return result


# --- Recording -----------------------------------------------------------------------------------

cdef int _record_staged(object x, int kind, Context context, object result) except -1:
    """Record what the reference staged. Failing to is no error of the user's."""
    cdef jm_table table
    jm_table_init(&table, &counters)
    try:
        if (kind != JM_NDARRAY and kind != JM_NP_SCALAR) or is_ordinary_data(x):
            push_argument(&table, x, kind, NULL)
            try_to_record(context, stage_records_of(context), &table, None, result)
    except Exception:
        if JM_DEBUG:
            raise
    finally:
        jm_table_free(&table)
    return 0


cdef PyObject* _watch(
    LeafPlan leaf, int by, PyObject* reference, PyObject** args, size_t nargsf
) except? NULL:
    """Call the reference, and see whether it stages its argument and does nothing else.

    Failing to see it is no error of the user's.
    """
    cdef Tape tape = start_tape([])
    cdef PyObject* error[3]
    cdef PyObject* result = perform(reference, args, nargsf, NULL)
    if tape is None:
        return result
    if result == NULL:
        PyErr_Fetch(&error[0], &error[1], &error[2])    # stopping runs code
        stop_tape()
        PyErr_Restore(error[0], error[1], error[2])
        return NULL
    stop_tape()
    try:
        if is_result_of(tape, <object>result, stage_function, <object>args[0]):
            leaf.staged_by |= by
        else:
            leaf.watched += 1
    except Exception:
        if JM_DEBUG:
            raise
    return result


# --- Lists ---------------------------------------------------------------------------------------

cdef inline bint _is_list(PyObject* x) noexcept:
    return PyList_CheckExact(x) or PyTuple_CheckExact(x)


cdef int _kinds_of_items(PyObject* items, int depth, Py_ssize_t* count) noexcept:
    """A bit for each kind of number in a list of lists, and how many numbers there are; or 0.

    Of numbers whose conversion to an array does not warn.
    """
    cdef int found = 0, kind, overflow
    cdef double number
    cdef PyObject* item
    cdef Py_ssize_t i
    for i in range(PySequence_Fast_GET_SIZE(items)):
        item = PySequence_Fast_GET_ITEM(items, i)
        kind = jm_kind_of_type(&types, Py_TYPE(item))
        if kind == JM_FLOAT:
            number = fabs(PyFloat_AS_DOUBLE(<object>item))
            if not (LEAST_FLOAT <= number <= MOST_FLOAT or number == 0 or not isfinite(number)):
                return 0
        elif kind == JM_INT:
            PyLong_AsLongLongAndOverflow(<object>item, &overflow)
            if overflow:
                return 0
        elif kind != JM_BOOL:
            kind = 0
            if _is_list(item) and depth < MOST_NESTED:
                kind = _kinds_of_items(item, depth + 1, count)
            if not kind:
                return 0
            found |= kind
            continue
        found |= 1 << kind
        count[0] += 1
    return found


# Dtypes that may be asked for, by what JAX makes them of without a warning; the first is float32.
cdef tuple _dtypes = tuple([
    (np.dtype(getattr(np, name)), getattr(np, name), getattr(private.jnp, name))
    for name in ("float32", "int32", "uint32", "int16", "uint16", "int8", "uint8", "bool_")
])
cdef dict _numbers_of_dtypes = {
    id(said): i for i, group in enumerate(_dtypes, start=1) for said in group
}


cdef Py_ssize_t _numbers_of_list(PyObject** args, Py_ssize_t n, PyObject* names) except -1:
    """The kinds of the numbers in a list, how many there are, and what dtype is asked for; or 0."""
    cdef int kinds
    cdef Py_ssize_t dtype = 0, count = 0
    if names != NULL:
        n += PyTuple_GET_SIZE(names)
    if n > 2:
        return 0
    if n == 2:
        if names != NULL and <object>PyTuple_GET_ITEM(names, 0) != "dtype":
            return 0
        dtype = _numbers_of_dtypes.get(<uintptr_t>args[1], 0)
        if not dtype:
            return 0
    kinds = _kinds_of_items(args[0], 0, &count)
    if not kinds or (dtype > 1 and kinds & 1 << JM_FLOAT):
        return 0
    return kinds | (dtype | count << 8) << KIND_COUNT


cdef bint _lists_are_untouched() except -1:
    """Is nothing replaced by which the reference converts a list, nor what is done instead?"""
    return (
        _have_rules and stage_is_untouched() and is_untouched(function_rules)
        and is_converted_as_before()
    )


cdef object _state_of_lists(Context context, object numbers):
    """The dtype of arrays that are made of such lists; 1 the second time that one comes, or 0."""
    cdef Records records = stage_records_of(context)
    if records.lists is None:
        records.lists = {}
    state = records.lists.get(numbers)
    if state is None and not is_asked():
        if len(records.lists) > MOST_LISTS:
            records.lists.clear()
        records.lists[numbers] = 1
    return state or 0


cdef int _learn_list(
    object items, int by, int entry, Context context, object numbers, object made
) except -1:
    """See whether staging what numpy makes of a list has the result that the reference's call had.

    Failing to see it is no error of the user's.
    """
    cdef PyObject* leaf = NULL
    cdef PyObject* known
    cdef int reason
    cdef Records records = stage_records_of(context)
    if type(made) is not _array_type or tapes.current is not None or not is_current(context):
        return 0
    if records.lists_learned >= MOST_LEARNED or not transfers_unguarded(True, True):
        return 0    # a guard may log what is staged
    records.lists_learned += 1
    try:
        data = np.asarray(items, array_dtype(made))
        enter()
        try:
            staged = stage_function(data)
        finally:
            leave()
        if (
            array_aval(staged) == array_aval(made)
            and array_committed(staged) == array_committed(made)
            and are_equal(array_sharding(staged), array_sharding(made))
        ):
            records.lists[numbers] = data.dtype
            known = _stage(<PyObject*>data, JM_NDARRAY, context, entry, by, &reason, &leaf)
            Py_XDECREF(known)    # there is one if `by` is known to stage such data, of other lists
        if leaf != NULL:
            (<LeafPlan>leaf).staged_by |= by
            Py_DECREF(<object>leaf)
    except Exception:
        if JM_DEBUG:
            raise
    return 0


cdef PyObject* _make_array_of_list(
    int by, Row row, object numbers, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """An array of a list; `numbers` are those of `_numbers_of_list`."""
    cdef PyObject* result = NULL
    cdef PyObject* unseen = NULL
    cdef object data
    cdef int reason
    cdef Context context = staging_context(&reason)
    state = 0
    if context is not None:
        state = _state_of_lists(context, numbers)
        reason = NOT_RECORDED
    if state and state != 1:
        try:
            data = np.asarray(<object>args[0], state)
        except (OverflowError, ValueError):    # too large ints, lists of several lengths
            state = 0
        else:
            result = (<take_function>_stage)(
                <PyObject*>data, JM_NDARRAY, context, row.entry, by, &reason, &unseen
            )
            if result != NULL:
                return _counted(row.entry, <PyObject*>data, result)
            if PyErr_Occurred() != NULL:
                return NULL
            Py_XDECREF(unseen)
    count_miss(row.entry, reason)
    result = perform(<PyObject*>row.call, args, nargsf, names)
    if state and reason == NOT_RECORDED and result != NULL:
        _learn_list(<object>args[0], by, row.entry, context, numbers, <object>result)
    return result


# --- Calls ---------------------------------------------------------------------------------------

cdef PyObject* make_array(
    int entry, int by, PyObject* reference, PyObject* x, int kind, PyObject** args, size_t nargsf
) except? NULL:
    cdef PyObject* result = NULL
    cdef PyObject* unseen = NULL
    cdef LeafPlan leaf = None
    cdef int reason
    cdef Context context = staging_context(&reason)
    if context is not None:
        result = (<take_function>_stage)(x, kind, context, entry, by, &reason, &unseen)
        if result != NULL:
            return _counted(entry, x, result)
        if PyErr_Occurred() != NULL:
            return NULL
        if reason != NOT_RECORDED:
            context = None
    if unseen != NULL:
        leaf = <LeafPlan>unseen
        Py_DECREF(leaf)
    count_miss(entry, reason)    # which ends a call that is only asked about
    if leaf is not None and leaf.watched < MOST_WATCHED and tapes.current is None:
        return (<watch_function>_watch)(leaf, by, reference, args, nargsf)
    result = perform(reference, args, nargsf, NULL)
    if context is not None and not by and result != NULL:
        _record_staged(<object>x, kind, context, <object>result)
    return result


cdef PyObject* _call(
    int by, Row row, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """A function of `jax.numpy` that makes arrays."""
    cdef int kind
    cdef Py_ssize_t numbers
    if names == NULL and PyVectorcall_NARGS(nargsf) == 1 and _stage_primitive is not None:
        kind = jm_kind_of_type(&types, Py_TYPE(args[0]))
        if jm_kind_is_host(kind):
            if (<stage_is_untouched_function>stage_is_untouched)():
                return (<make_array_function>make_array)(
                    row.entry, by, <PyObject*>row.call, args[0], kind, args, nargsf
                )
            count_miss(row.entry, REPLACED)
            return perform(<PyObject*>row.call, args, nargsf, names)
    if PyVectorcall_NARGS(nargsf) and _stage_primitive is not None and _is_list(args[0]):
        numbers = _numbers_of_list(args, PyVectorcall_NARGS(nargsf), names)
        if numbers and _lists_are_untouched():
            return (<list_function>_make_array_of_list)(
                by * OF_LISTS, row, numbers, args, nargsf, names
            )
    return (<call_row_function>call_row)(row, args, nargsf, names)


cdef PyObject* _call_asarray(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    return (<call_function>_call)(BY_ASARRAY, _asarray_row, args, nargsf, names)


cdef PyObject* _call_array(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    return (<call_function>_call)(BY_ARRAY, _array_row, args, nargsf, names)


asarray = make_method(<vectorcallfunc>_call_asarray, _asarray)
array = make_method(<vectorcallfunc>_call_array, _array)
