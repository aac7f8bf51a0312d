"""Operations one by one: `Primitive.bind` outside any trace, straight to a plan.

Outside a trace the reference runs a primitive as a jitted function of its own, which
`xla_primitive_callable` makes and keeps for each primitive and its parameters. Here they lead to
the plans of that function; where none fits, the reference's `bind` performs the call.
"""

import weakref
from functools import partial

from cpython.exc cimport PyErr_Clear
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM

from jaxmarshal._call cimport Call, try_plans
from jaxmarshal._classify cimport JM_ARRAY, JM_KEY_ARRAY, Py_TYPE, jm_kind_of_type, types
from jaxmarshal._context cimport Context
from jaxmarshal._counters cimport JM_DEBUG
from jaxmarshal._jit cimport JitPlans, PjitFunction, jit_context
from jaxmarshal._method cimport PyObject_Vectorcall, PyVectorcall_NARGS, make_method, vectorcallfunc
from jaxmarshal._stats cimport (
    EXECUTABLE, HIT, NOT_RECORDED, OPTIONS, UNKNOWN_TYPE, count_miss, entries, entry_number
)

from jaxmarshal import _jit, _reference

cdef extern from *:
    PyObject* PyTuple_GET_ITEM(PyObject* items, Py_ssize_t i) noexcept
    Py_ssize_t PyTuple_GET_SIZE(PyObject* items) noexcept
    PyObject* PyDict_GetItemWithError(object mapping, object key) except? NULL
    PyObject* PyErr_Occurred() noexcept

# As their callers see them; see `_errors`.
ctypedef PyObject* (*try_function)(JitPlans, Context, Call*, int*) noexcept
ctypedef int (*find_function)(object, Context, PyObject*, PyObject**) noexcept

cdef enum:
    MOST_FUNCTIONS = 4096    # as many as the reference keeps

cdef object _bind = _reference.primitive_bind
cdef object _primitive_type = _reference.Primitive
cdef object _callable_of = _reference.xla_primitive_callable
cdef object _apply_primitive = _reference.apply_primitive
cdef tuple _jaxpr_types = _reference.jaxpr_types
cdef int _entry = entry_number("bind")
cdef object _accelerated = weakref.WeakKeyDictionary()


# What is known about a primitive with certain parameters in one context.
cdef class Operation:
    cdef object impl         # the primitive's, compared by pointer
    cdef JitPlans plans      # of the function that runs it
    cdef object function     # keeps them in use


def xla_primitive_callable(prim, **params):
    """`jax._src.dispatch.xla_primitive_callable`: the jitted function of one primitive."""
    function = _callable_of(prim, **params)
    found = _accelerated.get(function)
    if found is None:
        found = _accelerated.setdefault(function, _jit.accelerate(function, True))
    return found


cdef bint _is_plain(object prim, dict params):
    """Does the reference run it as the jitted function of `xla_primitive_callable` and no more?"""
    if type(prim) is not _primitive_type:
        return False
    impl = prim.impl
    if type(impl) is not partial or impl.func is not _apply_primitive or impl.keywords:
        return False
    if len(impl.args) != 1 or impl.args[0] is not prim:
        return False
    if not vars(prim).keys().isdisjoint(("bind", "bind_with_trace", "is_high")):
        return False
    return not any([isinstance(value, _jaxpr_types) for value in params.values()])


cdef Operation _make_operation(object prim, dict params):
    cdef Operation operation = Operation()
    operation.impl = prim.impl
    if _is_plain(prim, params):
        operation.function = xla_primitive_callable(prim, **params)
        if _jit.is_jitted(operation.function):
            operation.plans = (<PjitFunction>operation.function).plans
    return operation


cdef int _note(object key, object prim, dict params, Context context) except -1:
    """The reference has performed the operation: know its function the next time."""
    cdef dict operations = context.operations
    if operations is None:
        operations = context.operations = {}
    if len(operations) >= MOST_FUNCTIONS:
        operations.clear()
    operations[key] = _make_operation(prim, params)
    return 0


cdef object _key(PyObject** args, Py_ssize_t n, PyObject* names):
    """The primitive with its parameters, as one object to look up; `n` counts the primitive."""
    cdef Py_ssize_t i, count
    cdef object key
    if names == NULL:
        return <object>args[0]
    count = PyTuple_GET_SIZE(names)
    key = PyTuple_New(count + 2)
    _set(key, 0, args[0])
    _set(key, 1, names)
    for i in range(count):
        _set(key, i + 2, args[n + i])
    return key


cdef inline void _set(object items, Py_ssize_t i, PyObject* value) noexcept:
    Py_INCREF(<object>value)
    PyTuple_SET_ITEM(items, i, <object>value)


cdef dict _params(PyObject** args, Py_ssize_t n, PyObject* names):
    cdef Py_ssize_t i
    if names == NULL:
        return {}
    return {
        <object>PyTuple_GET_ITEM(names, i): <object>args[n + i]
        for i in range(PyTuple_GET_SIZE(names))
    }


cdef int _find(object key, Context context, PyObject* prim, PyObject** found) except -1:
    """The operation, borrowed, or NULL; returns a reason why it cannot be run from here, or HIT."""
    cdef Operation operation
    found[0] = NULL
    if context.operations is None:
        return NOT_RECORDED
    found[0] = PyDict_GetItemWithError(context.operations, key)
    if found[0] == NULL:
        return NOT_RECORDED
    operation = <Operation>found[0]
    if operation.plans is None or (<object>prim).impl is not operation.impl:
        return EXECUTABLE
    return HIT


cdef PyObject* _bind_operation(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """`Primitive.bind(self, *args, **params)`."""
    cdef Py_ssize_t i, n = PyVectorcall_NARGS(nargsf)
    cdef Context context = None
    cdef Call call
    cdef PyObject* found = NULL
    cdef PyObject* result = NULL
    cdef int kind, reason = HIT
    cdef object key = None
    for i in range(1, n):
        kind = jm_kind_of_type(&types, Py_TYPE(args[i]))
        if kind != JM_ARRAY and kind != JM_KEY_ARRAY:
            reason = UNKNOWN_TYPE
            break
    if n and reason == HIT:
        context = jit_context(&reason)
    if context is not None:
        key = _key(args, n, names)
        reason = (<find_function>_find)(key, context, args[0], &found)
        if reason < 0:
            PyErr_Clear()    # unhashable
            reason = OPTIONS
            context = None
        elif reason == HIT:
            call.args = args + 1
            call.n = n - 1
            call.names = NULL
            call.flat = False
            result = (<try_function>try_plans)((<Operation>found).plans, context, &call, &reason)
            if result != NULL:
                entries[_entry].hits += 1
                return result
            if PyErr_Occurred() != NULL:
                return NULL
    count_miss(_entry, reason)
    result = PyObject_Vectorcall(<PyObject*>_bind, args, nargsf, names)
    if result != NULL and context is not None and found == NULL:
        _note_quietly(key, args, n, names, context)
    return result


cdef int _note_quietly(
    object key, PyObject** args, Py_ssize_t n, PyObject* names, Context context
) except -1:
    """Failing to know an operation is no error of the user's."""
    try:
        _note(key, <object>args[0], _params(args, n, names), context)
    except Exception:
        if JM_DEBUG:
            raise
    return 0


bind = make_method(<vectorcallfunc>_bind_operation, _bind)
