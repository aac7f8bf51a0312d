"""Operations one by one: `Primitive.bind` outside any trace, straight to a plan.

Outside a trace the reference runs a primitive as a jitted function of its own, which
`xla_primitive_callable` makes and keeps for each primitive and its parameters. Here they lead to
the plans of that function, or, with host data among the arguments, to the function itself. A
primitive with an implementation of its own leads to that, without the checks that the reference's
`bind` makes on the way and which cannot fail for the arguments accepted here. `stage`, which makes
an array of host data, is in `_staging`. Everything else goes to the reference's `bind`.
"""

import weakref
from functools import partial

from cpython.exc cimport PyErr_Clear
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM

from jaxmarshal cimport _staging, _tape
from jaxmarshal._call cimport Call, describe, try_plans
from jaxmarshal._classify cimport (
    JM_ARRAY, JM_KEY_ARRAY, JM_LITERAL, JM_NDARRAY, JM_NP_SCALAR, Py_TYPE, jm_kind_is_host,
    jm_kind_of_type, types
)
from jaxmarshal._context cimport Context
from jaxmarshal._counters cimport JM_DEBUG
from jaxmarshal._jit cimport PjitFunction
from jaxmarshal._jit_context cimport operation_context
from jaxmarshal._jit_record cimport JitPlans
from jaxmarshal._method cimport PyObject_Vectorcall, PyVectorcall_NARGS, make_method, vectorcallfunc
from jaxmarshal._records cimport is_ordinary_data
from jaxmarshal._staging cimport make_array, make_type
from jaxmarshal._stats cimport (
    EXECUTABLE, HIT, NOT_RECORDED, OPTIONS, UNKNOWN_TYPE, count_miss, entries, entry_number
)

from jaxmarshal import _jit, _reference

cdef extern from *:
    PyObject* PyTuple_GET_ITEM(PyObject* items, Py_ssize_t i) noexcept
    Py_ssize_t PyTuple_GET_SIZE(PyObject* items) noexcept
    PyObject* PyDict_GetItemWithError(object mapping, object key) except? NULL
    PyObject* PyErr_Occurred() noexcept
    PyObject* PyObject_Call(PyObject* function, PyObject* args, PyObject* kwargs) noexcept
    object PyObject_GenericGetDict(object obj, void* context)

cdef extern from "jaxmarshal/containers.h":
    PyObject* jm_dict_value(object mapping, object name, Py_ssize_t* position) except? NULL

# As their callers see them; see `_errors`.
ctypedef int (*find_function)(object, Context, PyObject*, PyObject**) noexcept
ctypedef int (*kinds_function)(PyObject**, Py_ssize_t) noexcept
ctypedef PyObject* (*direct_function)(Operation, PyObject**, Py_ssize_t, PyObject*) noexcept
ctypedef PyObject* (*run_function)(
    Operation, int, PyObject**, Py_ssize_t, PyObject*, Context, int*
) noexcept

cdef enum:
    MOST_FUNCTIONS = 4096    # as many as the reference keeps

cdef object _bind = _reference.primitive_bind
cdef object _primitive_type = _reference.Primitive
cdef object _callable_of = _reference.xla_primitive_callable
cdef object _canonicalize = _reference.canonicalize_value
cdef object _stage_primitive = _reference.stage_primitive
cdef object _apply_primitive = _reference.apply_primitive
cdef tuple _jaxpr_types = _reference.jaxpr_types
cdef object _convert_bind = _reference.convert_bind_with_trace
cdef int _entry = entry_number("bind")
cdef Py_ssize_t _impl_position = 0
cdef int _callable_entry = entry_number("xla_primitive_callable")
cdef dict _accelerated = {}    # id of a function of the reference -> (weak reference to it, ours)


# How a primitive with certain parameters is run in one context.
cdef class Operation:
    cdef object impl         # the primitive's, compared by pointer
    cdef Py_ssize_t own      # how many attributes of its own the primitive had
    cdef object function     # the jitted function that it comes to, or None
    cdef JitPlans plans      # of that function, or None
    cdef bint direct         # it comes to calling `impl`


def xla_primitive_callable(prim, **params):
    """`jax._src.dispatch.xla_primitive_callable`: the jitted function of one primitive."""
    function = _callable_of(prim, **params)
    key = id(function)
    found = _accelerated.get(key)
    if found is None:
        found = (
            weakref.ref(function, lambda _: _accelerated.pop(key, None)),
            _jit.accelerate(function, _jit.BY_PRIMITIVES),
        )
        _accelerated[key] = found
        count_miss(_callable_entry, NOT_RECORDED)
    else:
        entries[_callable_entry].hits += 1
    return (<tuple>found)[1]


cdef bint _is_ordinary(object prim, dict params) except -1:
    """Does the reference's `bind` come to calling the implementation with the arguments?"""
    if type(prim) is not _primitive_type or prim.ref_primitive or prim.ref_allocating:
        return False
    own = vars(prim)
    if "bind" in own or "is_high" in own:
        return False
    if "bind_with_trace" in own and not (
        # It constrains the result's sharding afterwards, if there is one to constrain it to.
        own["bind_with_trace"] is _convert_bind and params.get("sharding", own) is None
    ):
        return False
    if _reference.debug_key_reuse.value:
        return False
    return not any([_holds_a_program(value) for value in params.values()])


cdef bint _holds_a_program(object value) except -1:
    if isinstance(value, (tuple, list)):
        return any([_holds_a_program(item) for item in value])
    return isinstance(value, _jaxpr_types)


cdef bint _is_one_function(object prim) except -1:
    """Is the implementation the reference's own, a jitted function for each primitive?"""
    impl = prim.impl
    if type(impl) is not partial or impl.func is not _apply_primitive or impl.keywords:
        return False
    return len(impl.args) == 1 and impl.args[0] is prim


cdef Operation _make_operation(object prim, dict params):
    cdef Operation operation = Operation()
    operation.impl = prim.impl
    operation.own = len(vars(prim))
    if not _is_ordinary(prim, params):
        return operation
    if not _is_one_function(prim):
        operation.direct = True
        return operation
    operation.function = xla_primitive_callable(prim, **params)
    if _jit.is_jitted(operation.function):
        operation.plans = (<PjitFunction>operation.function).plans
    return operation


cdef int _note(object key, object prim, dict params, Context context) except -1:
    """The reference has performed the operation: know its function the next time."""
    cdef dict operations = context.operations
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


cdef inline bint _has_its_rules(object prim, Operation operation) except -1:
    """Is the primitive implemented as it was, with no further attributes of its own?"""
    cdef dict own = PyObject_GenericGetDict(prim, NULL)
    cdef PyObject* impl = jm_dict_value(own, "impl", &_impl_position)
    return impl == <PyObject*>operation.impl and len(own) == operation.own


cdef int _find(object key, Context context, PyObject* prim, PyObject** found) except -1:
    """The operation, owned, or NULL; returns a reason why it cannot be run from here, or HIT."""
    cdef Operation operation
    found[0] = NULL
    if context.operations is None:
        context.operations = {}
    found[0] = PyDict_GetItemWithError(context.operations, key)
    if found[0] == NULL:
        return NOT_RECORDED
    operation = <Operation>found[0]
    # The caller's: another thread may put another one in its place.
    Py_INCREF(operation)
    if not _has_its_rules(<object>prim, operation):
        Py_DECREF(operation)
        found[0] = NULL    # other rules were given to the primitive
        return NOT_RECORDED
    return HIT if operation.direct or operation.function is not None else <int>EXECUTABLE


# --- Binding -------------------------------------------------------------------------------------

cdef int _kind_of_all(PyObject** args, Py_ssize_t n) except -1:
    """JM_ARRAY where all are arrays or typed keys; JM_NDARRAY with host data among them; 0."""
    cdef Py_ssize_t i
    cdef int kind, all_kinds = JM_ARRAY
    for i in range(n):
        kind = jm_kind_of_type(&types, Py_TYPE(args[i]))
        if kind == JM_ARRAY or kind == JM_KEY_ARRAY:
            continue
        if kind == JM_NDARRAY or kind == JM_NP_SCALAR:
            if not is_ordinary_data(<object>args[i]):
                return 0
        elif not jm_kind_is_host(kind) and kind != JM_LITERAL:
            return 0
        all_kinds = JM_NDARRAY
    return all_kinds


cdef PyObject* _call_directly(
    Operation operation, PyObject** args, Py_ssize_t n, PyObject* names
) except? NULL:
    """Call what the reference's `bind` would call in the end, with canonical arguments."""
    cdef Py_ssize_t i
    cdef int kind
    cdef list canonical = []
    cdef tuple values
    cdef dict params
    for i in range(n):
        kind = jm_kind_of_type(&types, Py_TYPE(args[i]))
        if jm_kind_is_host(kind):
            canonical.append(_canonicalize(<object>args[i]))
        else:
            canonical.append(<object>args[i])
    values = tuple(canonical)
    if not operation.direct:
        return PyObject_Call(<PyObject*>operation.function, <PyObject*>values, NULL)
    params = _params(args, n, names)
    return PyObject_Call(<PyObject*>operation.impl, <PyObject*>values, <PyObject*>params)


cdef PyObject* _run(
    Operation operation, int kinds, PyObject** args, Py_ssize_t n, PyObject* names,
    Context context, int* reason
) except? NULL:
    """The results, a new reference; or NULL with a reason."""
    cdef Call call
    cdef PyObject* result
    if kinds == JM_ARRAY and operation.plans is not None:
        describe(&call, args, n, NULL)
        result = try_plans(operation.plans, context, &call, reason)
        if _tape.current is not None and result != NULL:
            _tape.note(operation.function, args, n, result)
        return result
    if kinds == JM_ARRAY and not operation.direct:
        reason[0] = EXECUTABLE
        return NULL
    # Without a check for errors: the tracebacks of what goes wrong inside are the reference's.
    return (<direct_function>_call_directly)(operation, args, n, names)


cdef PyObject* _bind_operation(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """`Primitive.bind(self, *args, **params)`."""
    cdef Py_ssize_t n = PyVectorcall_NARGS(nargsf)
    cdef Context context = None
    cdef PyObject* found = NULL
    cdef PyObject* result = NULL
    cdef int kinds, kind = 0, reason = UNKNOWN_TYPE
    cdef bint known
    cdef object key = None
    if n == 2 and names == NULL and args[0] == <PyObject*>_stage_primitive:
        kind = jm_kind_of_type(&types, Py_TYPE(args[1]))
        if jm_kind_is_host(kind):
            return (<make_type>make_array)(
                _entry, 0, <PyObject*>_bind, args[1], kind, args, nargsf
            )
    kinds = (<kinds_function>_kind_of_all)(args + 1, n - 1) if n else 0
    if kinds > 0:
        context = operation_context(&reason)
    if kinds < 0:
        PyErr_Clear()
    if context is not None:
        key = _key(args, n, names)
        reason = (<find_function>_find)(key, context, args[0], &found)
        if reason < 0:
            PyErr_Clear()    # unhashable
            reason = OPTIONS
            context = None
        elif reason == HIT:
            result = (<run_function>_run)(
                <Operation>found, kinds, args + 1, n - 1, names, context, &reason
            )
    known = found != NULL
    if known:
        Py_DECREF(<object>found)
    if result != NULL:
        entries[_entry].hits += 1
        return result
    if PyErr_Occurred() != NULL:
        return NULL
    count_miss(_entry, reason)
    result = PyObject_Vectorcall(<PyObject*>_bind, args, nargsf, names)
    if result != NULL and context is not None and not known:
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
_staging.stage_function = partial(bind, _stage_primitive)
