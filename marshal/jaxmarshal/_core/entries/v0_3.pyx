"""The calls of `jaxmarshal.compat.dispatch_v0_3` that are made often, without a Python frame.

Each asks first whether the table of handlers, which is the user's to change, still has for the
arguments what it had in the beginning. Everything else is done in Python, in `jaxmarshal.compat`.
"""

cimport numpy as cnp
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from jaxmarshal._core.context.configuration cimport Context, current_context, transfers_unguarded
from jaxmarshal._core.entries.executables cimport call_flat
from jaxmarshal._core.placement.records cimport (
    TargetPlan, find_target, put_host, records_of, resolve_host
)
from jaxmarshal._core.values.arguments cimport jm_table, jm_table_free, jm_table_init, push_argument
from jaxmarshal._core.values.kinds cimport JM_NDARRAY, Py_TYPE
from jaxmarshal._core.values.live_objects cimport counters
from jaxmarshal._core.values.methods cimport (
    PyObject_Vectorcall, PyVectorcall_NARGS, make_method, vectorcallfunc
)
from jaxmarshal._reports.counting cimport (
    GUARD, HIT, NOT_RECORDED, UNSUPPORTED, count_hit, count_miss, entry_number
)

from functools import partial

import numpy as np

from jaxmarshal._jax import private

cnp.import_array()

cdef object _ndarray = np.ndarray
cdef object _array_type = private.ArrayImpl
cdef object _partial_call = partial.__call__
cdef bint _active = private.HAVE_DEVICE_PUT
cdef int _put_entry = entry_number("dispatch_v0_3.device_put")
cdef int _call_entry = entry_number("dispatch_v0_3.call")

# The state of `jaxmarshal.compat`, set while it is imported.
cdef dict _handlers = {}           # owned: `device_put_handlers`
cdef dict _first_handlers = {}     # what it held then, for the types that have a fast way
cdef object _put_by_handler = None
cdef object _check_and_call = None
cdef bint _replaced = False        # has the user put another function in the place of one of ours?


def bind_put(dict handlers, object put_by_handler) -> None:
    """Take over the table of handlers as it is, and what `device_put` falls back on."""
    global _handlers, _first_handlers, _put_by_handler
    _handlers = handlers
    _first_handlers = dict(handlers)
    _first_handlers.pop(private.PRNGKeyArray, None)    # checked against avals in Python
    _put_by_handler = put_by_handler


def first_handler(object cls) -> object:
    """What the table held for a type at first, if that has a fast way, or None."""
    return _first_handlers.get(cls)


def set_replaced(bint replaced) -> None:
    """Leave everything to Python while a function that it consists of has been replaced."""
    global _replaced
    _replaced = replaced


cdef inline bint _has_first_handler(object cls) noexcept:
    cdef PyObject* handler = PyDict_GetItem(_handlers, cls)
    return handler != NULL and handler == PyDict_GetItem(_first_handlers, cls)


cdef bint _have_first_handlers(PyObject** args, Py_ssize_t n) noexcept:
    cdef Py_ssize_t i
    cdef bint arrays = _has_first_handler(_array_type)
    for i in range(n):
        cls = <object>Py_TYPE(args[i])
        if cls is _array_type:
            if not arrays:
                return False
        elif not (_has_first_handler(cls) and _has_first_handler(_ndarray)):
            return False    # numbers become numpy arrays on their way
    return True


cdef object _put_array(object x, object device, int* reason):
    """A numpy array on a device, or None with a reason."""
    cdef jm_table table
    cdef TargetPlan plan
    cdef Context context = current_context(reason)
    if reason[0]:
        return None
    jm_table_init(&table, &counters)
    try:
        push_argument(&table, x, JM_NDARRAY, NULL)
        plan = find_target(records_of(context), device)
        reason[0] = NOT_RECORDED if plan is None else resolve_host(&table.slots[0], plan)
        if reason[0] == HIT and not transfers_unguarded(True, False):
            reason[0] = GUARD
        return None if reason[0] else put_host(&table.slots[0], plan, device)
    finally:
        jm_table_free(&table)


def device_put(x, device=None):
    """Put a value on a device, by the handler for its exact type in `device_put_handlers`.

    Host values get a dtype that the configuration allows first; Python's and numpy's scalars
    become arrays without dimensions.

    Args:
      x: the value.
      device: where to, or None for the default device.

    Returns:
      A tuple of buffers, which are `jax.Array`s on one device; of one for all types that JAX has.

    Raises:
      TypeError: if the table has no handler for the type.
    """
    cdef int reason
    if type(x) is not _ndarray or _replaced or not _has_first_handler(_ndarray):
        return _put_by_handler(x, device)
    reason = UNSUPPORTED
    if _active:
        buffer = _put_array(x, device, &reason)
        if reason == HIT:
            count_hit(_put_entry)
            return (buffer,)
    count_miss(_put_entry, reason)
    return _put_by_handler(x, device)


cdef PyObject* _call_flat(
    PyObject** args, size_t nargsf, PyObject* names, bint planned, PyObject* reference
) except? NULL:
    """Call a method through the plans of its object if that has some, for a tuple of results."""
    cdef Py_ssize_t n = PyVectorcall_NARGS(nargsf)
    cdef PyObject* results
    cdef tuple found
    if not planned or names != NULL or _replaced or not _have_first_handlers(args + 1, n - 1):
        return PyObject_Vectorcall(reference, args, nargsf, names)
    results = call_flat(args, n, _call_entry, reference)
    try:
        found = tuple(<object>results)
    finally:
        Py_DECREF(<object>results)
    Py_INCREF(found)
    return <PyObject*>found


cdef PyObject* _run_execution(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """`Execution.__call__`: flat arguments, not compared with anything."""
    return _call_flat(
        args, nargsf, names, PyVectorcall_NARGS(nargsf) > 0, <PyObject*>_partial_call
    )


cdef PyObject* _call(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """`XlaCompiledComputation.call`."""
    cdef bint planned = PyVectorcall_NARGS(nargsf) > 0 and (
        (<object>args[0]).unsafe_call is (<object>args[0])._planned
    )
    return _call_flat(args, nargsf, names, planned, <PyObject*>_check_and_call)


run_execution = make_method(<vectorcallfunc>_run_execution, _partial_call)


def bind_call(object check_and_call) -> object:
    """The accelerated `XlaCompiledComputation.call` for the one in Python."""
    global _check_and_call
    _check_and_call = check_and_call
    return make_method(<vectorcallfunc>_call, check_and_call)
