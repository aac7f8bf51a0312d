"""Operations one by one: `Primitive.bind` outside any trace, straight to a plan.

Outside a trace the reference runs a primitive as a jitted function of its own, which
`xla_primitive_callable` makes and keeps for each primitive and its parameters. Here they lead to
the plans of that function, or, with host data among the arguments, to the function itself. A
primitive with an implementation of its own leads to that, without the checks that the reference's
`bind` makes on the way and which cannot fail for the arguments accepted here. `stage`, which makes
an array of host data, is in `array_from_host`. Everything else goes to the reference's `bind`.
"""

import weakref
from functools import partial

cimport numpy as cnp
from cpython.exc cimport PyErr_Clear
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from jaxmarshal._core.context.bypassed cimport (
    BY_OTHERS, BY_ONE_FUNCTION, attributes_of, bind_rules, has_attributes, implementation_of,
    is_ordinary, is_untouched, stage_is_untouched, stage_is_untouched_function
)
from jaxmarshal._core.context.configuration cimport Context, state_is
from jaxmarshal._core.entries cimport array_from_host
from jaxmarshal._core.entries.array_from_host cimport make_array, make_array_function
from jaxmarshal._core.placement.records cimport is_ordinary_data
from jaxmarshal._core.plans.call cimport Call, describe_arguments, try_plans
from jaxmarshal._core.plans.jit_configuration cimport operation_context
from jaxmarshal._core.plans.jit_plans cimport JitPlans, plans_of_jitted
from jaxmarshal._core.replay cimport tapes
from jaxmarshal._core.replay.operations cimport (
    Operation, Operations, find_operation, hash_operation, is_operation_wanted, keep_operation
)
from jaxmarshal._core.values.array_words cimport array_buffer, words_are_vouched_for
from jaxmarshal._core.values.capi cimport PyErr_Occurred
from jaxmarshal._core.values.kinds cimport (
    JM_ARRAY, JM_KEY_ARRAY, JM_LITERAL, JM_NDARRAY, JM_NP_SCALAR, Py_TYPE, jm_kind_is_host,
    jm_kind_of_type, types
)
from jaxmarshal._core.values.live_objects cimport JM_DEBUG
from jaxmarshal._core.values.methods cimport (
    PyObject_Vectorcall, PyVectorcall_NARGS, make_method, named_arguments, vectorcallfunc
)
from jaxmarshal._core.values.narrowing cimport narrows_silently
from jaxmarshal._reports.counting cimport (
    DELETED, EXECUTABLE, HIT, NOT_RECORDED, OBJECT_LAYOUT, OPTIONS, REPLACED, UNKNOWN_TYPE, VALUE,
    count_hit, count_miss, decided_to_hit, enter, entry_number, is_asked, leave, perform
)

from jaxmarshal._core.entries import jit
from jaxmarshal._jax import private

cnp.import_array()

cdef extern from *:
    PyObject* PyObject_Call(PyObject* function, PyObject* args, PyObject* kwargs) noexcept

cdef extern from "jaxmarshal/compat.h":
    bint jm_weakref_is_alive(PyObject* reference) noexcept

cdef extern from "numpy/arrayobject.h":
    object PyArray_FromScalar(object scalar, void* descr)

# As their callers see them; see `errors`.
ctypedef int (*find_function)(
    size_t, Context, PyObject**, Py_ssize_t, PyObject*, PyObject**
) noexcept
ctypedef int (*kinds_function)(PyObject**, Py_ssize_t) noexcept
ctypedef int (*obstacle_function)(PyObject**, Py_ssize_t) noexcept
ctypedef PyObject* (*direct_function)(Operation, PyObject**, Py_ssize_t, PyObject*) noexcept
ctypedef PyObject* (*run_function)(
    Operation, int, PyObject**, Py_ssize_t, PyObject*, Context, int*
) noexcept

cdef object _bind = private.primitive_bind
cdef PyObject* _primitive_type = <PyObject*>private.Primitive
cdef object _callable_of = private.xla_primitive_callable
cdef object _canonicalize = private.canonicalize_value
cdef object _stage_primitive = private.stage_primitive
cdef object _convert_bind = private.convert_bind_with_trace
cdef object _x64 = private.enable_x64
cdef int _callable_entry = entry_number("xla_primitive_callable")
cdef int _entry = entry_number("bind")


# --- Functions of primitives ---------------------------------------------------------------------

cdef PyObject* _xla_primitive_callable(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """`jax._src.dispatch.xla_primitive_callable`: the jitted function of one primitive."""
    cdef PyObject* found = PyObject_Vectorcall(<PyObject*>_callable_of, args, nargsf, names)
    cdef object function
    if found == NULL:
        return NULL
    function = <object>found
    Py_DECREF(function)
    if not words_are_vouched_for():
        count_miss(_callable_entry, OBJECT_LAYOUT)
    elif jit.uses_plans(function):
        count_hit(_callable_entry)
    else:
        count_miss(_callable_entry, NOT_RECORDED)
        function = jit.of_primitive(function)
    Py_INCREF(function)
    return <PyObject*>function


xla_primitive_callable = make_method(<vectorcallfunc>_xla_primitive_callable, _callable_of)


cdef JitPlans _plans_of(Operation operation):
    """The plans of the jitted function that a primitive comes to, or None."""
    if operation.plans is None:
        operation.plans = plans_of_jitted((<object>operation.function)())
    return operation.plans


cdef bint _is_alive(Operation operation) noexcept:
    """Is the function that the primitive came to still the one that the reference keeps?

    It is JAX's to keep: what its cache lets go is not held here.
    """
    return operation.direct or jm_weakref_is_alive(<PyObject*>operation.function)


# --- Recording -----------------------------------------------------------------------------------

cdef Operation _make_operation(object prim, dict params):
    """How the reference runs a primitive, or None where it has to be left to it."""
    cdef Operation operation = Operation()
    cdef int implementation
    if not is_ordinary(prim) or private.debug_key_reuse.value:
        return None
    implementation = implementation_of(prim)
    if implementation == BY_OTHERS:
        return None
    own_bind = vars(prim).get("bind_with_trace")
    # That of conversions constrains the sharding afterwards, if there is one to constrain it to.
    if own_bind is not None and not (
        own_bind is _convert_bind and params.get("sharding", own_bind) is None
    ):
        return None
    operation.prim = prim
    operation.attributes = attributes_of(prim)
    if operation.attributes is None:
        return None
    operation.names = tuple(params)
    operation.values = tuple(params.values())
    if implementation == BY_ONE_FUNCTION:
        function = xla_primitive_callable(prim, **params)
        operation.function = weakref.ref(function)
    else:
        operation.direct = True
    return operation


cdef int _note(size_t hashed, object prim, dict params, Context context) except -1:
    """The reference has performed the operation: know how to, the next time."""
    cdef Operation operation
    if context.operations is None:
        context.operations = Operations()
    if not is_operation_wanted(<Operations>context.operations, hashed):
        return 0
    operation = _make_operation(prim, params)
    if operation is None:
        return 0
    operation.hashed = hashed
    return keep_operation(<Operations>context.operations, operation)


cdef int _find(
    size_t hashed, Context context, PyObject** args, Py_ssize_t n, PyObject* names,
    PyObject** found
) except -1:
    """The operation, owned, or NULL; HIT, or why it cannot be run from here."""
    cdef Operation operation
    if not is_untouched(bind_rules):
        return REPLACED
    if context.operations is None:
        return NOT_RECORDED
    found[0] = find_operation(<Operations>context.operations, hashed, args[0], names, args + n)
    if found[0] == NULL:
        return NOT_RECORDED
    operation = <Operation>found[0]
    # The caller's: another thread may put another one in its place.
    Py_INCREF(operation)
    # Other rules may have been given to the primitive, and its function dropped.
    if has_attributes(operation.prim, operation.attributes) and _is_alive(operation):
        return HIT
    Py_DECREF(operation)
    found[0] = NULL
    return NOT_RECORDED


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


cdef bint _converts_silently(PyObject* arg, int kind) except -1:
    """Does numpy not warn of it? A warning names the line that calls into C: another one here."""
    cdef object data
    dtype = (<object>arg).dtype
    if (<cnp.dtype>dtype).num != cnp.NPY_FLOAT64 and (<cnp.dtype>dtype).num != cnp.NPY_COMPLEX128:
        return True
    if state_is(_x64, True):
        return True
    data = <object>arg if kind == JM_NDARRAY else PyArray_FromScalar(<object>arg, NULL)
    return narrows_silently(data)


cdef int _obstacle(PyObject** args, Py_ssize_t n) except -1:
    """Why only the reference can pass these on to a function, or HIT."""
    cdef Py_ssize_t i
    cdef int kind
    for i in range(n):
        kind = jm_kind_of_type(&types, Py_TYPE(args[i]))
        # One that `__new__` made, which jaxlib's functions do not expect, has no buffer either.
        if kind == JM_ARRAY and array_buffer(<object>args[i]) == NULL:
            return DELETED
        if kind == JM_NDARRAY or kind == JM_NP_SCALAR:
            if not _converts_silently(args[i], kind):
                return VALUE
    return HIT


cdef PyObject* _performed(PyObject* function, PyObject* args, PyObject* kwargs) noexcept:
    cdef PyObject* result
    enter()
    result = PyObject_Call(function, args, kwargs)
    leave()
    return result


cdef PyObject* _call_directly(
    Operation operation, PyObject** args, Py_ssize_t n, PyObject* names
) except? NULL:
    """Call what the reference's `bind` would call in the end, with canonical arguments."""
    cdef Py_ssize_t i
    cdef int kind
    cdef list canonical = []
    cdef tuple values
    cdef dict params
    cdef object function
    decided_to_hit(_entry)
    for i in range(n):
        kind = jm_kind_of_type(&types, Py_TYPE(args[i]))
        if jm_kind_is_host(kind):
            canonical.append(_canonicalize(<object>args[i]))
        else:
            canonical.append(<object>args[i])
    values = tuple(canonical)
    if operation.direct:
        function = vars(operation.prim)["impl"]
        params = named_arguments(args + n, names)
        return _performed(<PyObject*>function, <PyObject*>values, <PyObject*>params)
    function = operation.function()
    if function is None:    # converting has run other code
        function = xla_primitive_callable(operation.prim, **named_arguments(args + n, names))
    return _performed(<PyObject*>function, <PyObject*>values, NULL)


cdef PyObject* _run(
    Operation operation, int kinds, PyObject** args, Py_ssize_t n, PyObject* names,
    Context context, int* reason
) except? NULL:
    """The results, a new reference; or NULL with a reason."""
    cdef Call call
    cdef PyObject* result
    cdef object function
    cdef JitPlans plans = None
    if kinds == JM_ARRAY and not operation.direct:
        plans = _plans_of(operation)
    if plans is not None:
        function = operation.function() if tapes.current is not None else None
        describe_arguments(&call, args, n, NULL)
        call.entry = _entry
        result = try_plans(plans, None, context, &call, reason)
        if tapes.current is not None and result != NULL:
            tapes.note(function, args, n, NULL, result)
        if reason[0] == DELETED and not is_asked():
            plans.skip, plans.refusal = 1, DELETED    # the reference calls it next: once is enough
        return result
    if kinds == JM_ARRAY and not operation.direct:
        reason[0] = EXECUTABLE
        return NULL
    reason[0] = (<obstacle_function>_obstacle)(args, n)
    if reason[0] != HIT:
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
    cdef int kinds = 0, kind = 0, reason = UNKNOWN_TYPE
    cdef size_t hashed = 0
    if n and tapes.current is not None:
        tapes.note_primitive(args[0], args + n, names)
    if n == 2 and names == NULL and args[0] == <PyObject*>_stage_primitive:
        kind = jm_kind_of_type(&types, Py_TYPE(args[1]))
        if jm_kind_is_host(kind) and (<stage_is_untouched_function>stage_is_untouched)():
            return (<make_array_function>make_array)(
                _entry, 0, <PyObject*>_bind, args[1], kind, args, nargsf
            )
    if n and <PyObject*>Py_TYPE(args[0]) == _primitive_type:
        kinds = (<kinds_function>_kind_of_all)(args + 1, n - 1)
    if kinds == JM_ARRAY and not words_are_vouched_for():
        kinds, reason = 0, OBJECT_LAYOUT
    if kinds > 0:
        hashed = hash_operation(args[0], names, args + n)
        reason = OPTIONS
    if hashed:
        context = operation_context(&reason)
    if context is not None:
        reason = (<find_function>_find)(hashed, context, args, n, names, &found)
        if reason == HIT:
            result = (<run_function>_run)(
                <Operation>found, kinds, args + 1, n - 1, names, context, &reason
            )
    if found != NULL:
        Py_DECREF(<object>found)
    if result != NULL:
        count_hit(_entry)
        return result
    if PyErr_Occurred() != NULL:
        if found != NULL:
            return NULL
        PyErr_Clear()    # in looking at arguments, which the reference looks at too
    count_miss(_entry, reason)
    result = perform(<PyObject*>_bind, args, nargsf, names)
    if result != NULL and context is not None and reason == NOT_RECORDED and found == NULL:
        _note_quietly(hashed, args, n, names, context)
    return result


cdef int _note_quietly(
    size_t hashed, PyObject** args, Py_ssize_t n, PyObject* names, Context context
) except -1:
    """Failing to know an operation is no error of the user's."""
    try:
        _note(hashed, <object>args[0], named_arguments(args + n, names), context)
    except Exception:
        if JM_DEBUG:
            raise
    return 0


bind = make_method(<vectorcallfunc>_bind_operation, _bind)
if _stage_primitive is not None:
    array_from_host.stage_function = partial(bind, _stage_primitive)
