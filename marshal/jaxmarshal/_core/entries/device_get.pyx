"""`jax.device_get`: a tree of arrays as the same tree of numpy arrays.

JAX walks the tree twice, sets a state for the time of the call, and comes to each array's data
through four functions of Python. Here the tree is walked once, and each array is asked for its data
by the function of jaxlib that JAX asks in the end. It waits for the array, raises what went wrong
with it, and says whether the data are a copy: that is kept by the array, as in JAX.
"""

cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from jaxmarshal._core.context.bypassed cimport is_untouched, placement_rules
from jaxmarshal._core.context.configuration cimport fetches_unguarded, is_profiling
from jaxmarshal._core.replay cimport tapes
from jaxmarshal._core.values.arguments cimport (
    jm_slot, jm_table, jm_table_free, jm_table_init, set_ready
)
from jaxmarshal._core.values.array_words cimport array_sharding, has_data_of_jaxlib, is_gone
from jaxmarshal._core.values.errors cimport is_of_program
from jaxmarshal._core.values.kinds cimport (
    JM_ARRAY, JM_NP_SCALAR, jm_kind_is_host
)
from jaxmarshal._core.values.live_objects cimport counters
from jaxmarshal._core.values.methods cimport (
    Method, PyObject_Vectorcall, PyVectorcall_NARGS, make_method, vectorcallfunc
)
from jaxmarshal._core.values.trees cimport (
    NEEDS_REGISTRY, Structure, flatten_tree, free_structure, init_structure, rebuild_tree
)
from jaxmarshal._reports.counting cimport (
    DELETED, GUARD, HIT, PROFILER, REPLACED, SHARDING, TREE, VALUE, count_hit_of, count_miss_of,
    decided_to_hit, entries, entry_number, named_number, perform, reason_of_kind
)

from jaxmarshal._jax import private

cnp.import_array()

cdef object _single_type = private.SingleDeviceSharding
cdef object _named_type = private.NamedSharding
cdef object _data_of = private.array_to_numpy
cdef object _start_copies = private.start_copies


cdef bint _is_whole_here(object sharding) except -1:
    """Has one device of this process all of the array?"""
    if type(sharding) is not _single_type and type(sharding) is not _named_type:
        return False
    return sharding.is_fully_replicated and sharding.has_addressable_devices


cdef int _obstacle(jm_table* table) except -1:
    """Why only the reference can fetch these, or HIT."""
    cdef Py_ssize_t i
    cdef jm_slot* slot
    for i in range(table.count):
        slot = &table.slots[i]
        if slot.kind == JM_ARRAY:
            if is_gone(<object>slot.obj):
                return DELETED
            if not _is_whole_here(array_sharding(<object>slot.obj)):
                return SHARDING
        elif not jm_kind_is_host(slot.kind):
            return reason_of_kind(slot.kind)
    if not fetches_unguarded():
        return GUARD
    if is_profiling():
        return PROFILER
    return HIT if is_untouched(placement_rules) else REPLACED


cdef int _prepare(object tree, Structure* structure, jm_table* table) except -1:
    """Flatten, and see whether all can be fetched. Errors on the way are the reference's."""
    cdef int reason
    try:
        reason = flatten_tree(tree, NULL, structure, table)
        if reason == NEEDS_REGISTRY:
            return TREE
        return reason or _obstacle(table)
    except Exception:
        return TREE


cdef int _start(jm_table* table) except -1:
    """Have copies of all arrays begin at once, where their data have to be copied."""
    cdef Py_ssize_t i
    cdef list arrays = []
    for i in range(table.count):
        if table.slots[i].kind == JM_ARRAY:
            array = <object>table.slots[i].obj
            if not has_data_of_jaxlib(array) and array._npy_value is None:
                arrays.append(array)
    if len(arrays) > 1:
        _start_copies(arrays)
    return 0


cdef object _fetch(object array):
    """What the reference's `_value` returns."""
    known = array._npy_value
    if known is not None:
        return known
    data, is_copy = _data_of(array)
    cnp.PyArray_CLEARFLAGS(data, cnp.NPY_ARRAY_WRITEABLE)
    if is_copy:
        array._npy_value = data
    return data


cdef bint _fetch_all(jm_table* table) except -1:
    """Fetch each leaf; the result is ready then. False where the reference says what is wrong."""
    cdef Py_ssize_t i
    cdef jm_slot* slot
    try:
        _start(table)
        for i in range(table.count):
            slot = &table.slots[i]
            if slot.kind == JM_ARRAY:
                set_ready(slot, _fetch(<object>slot.obj))
            elif slot.kind == JM_NP_SCALAR:
                set_ready(slot, (<object>slot.obj).__array__())
            else:
                set_ready(slot, <object>slot.obj)
    except Exception as error:
        if is_of_program(error):    # a handler of a signal
            raise
        return False
    return True


cdef class _Getter:
    """Where calls are counted."""
    cdef int entry, named


cdef PyObject* _device_get(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    cdef jm_table table
    cdef Structure structure
    cdef _Getter getter = <_Getter>(<Method>method).inner
    cdef PyObject* reference = <PyObject*>(<Method>method).reference
    cdef int reason
    # On a tape the reference's reading is noted.
    if PyVectorcall_NARGS(nargsf) != 1 or names != NULL or tapes.current is not None:
        return PyObject_Vectorcall(reference, args, nargsf, names)
    jm_table_init(&table, &counters)
    init_structure(&structure)
    try:
        reason = _prepare(<object>args[0], &structure, &table)
        if reason == HIT:
            decided_to_hit(getter.entry)
            if _fetch_all(&table):
                count_hit_of(getter.entry, &entries[getter.named])
                result = rebuild_tree(&structure, &table.slots.ready, sizeof(jm_slot))
                Py_INCREF(result)
                return <PyObject*>result
            reason = VALUE
    finally:
        free_structure(&structure)
        jm_table_free(&table)
    count_miss_of(getter.entry, &entries[getter.named], reason)
    return perform(reference, args, nargsf, names)


def make_getter(str entry, reference, str written):
    """The replacement of `device_get`.

    Args:
      entry: the name of the entry point that counts.
      reference: the function.
      written: how programs write it.
    """
    cdef Method method = make_method(<vectorcallfunc>_device_get, reference)
    cdef _Getter getter = _Getter()
    getter.entry, getter.named = entry_number(entry), named_number(entry, written)
    method.inner = getter
    return method
