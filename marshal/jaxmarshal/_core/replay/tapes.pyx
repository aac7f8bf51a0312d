"""Writing tapes, and taking their steps."""

import weakref
from enum import Enum
from functools import partial
from types import FunctionType

import numpy as np
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from jaxmarshal._core.context.bypassed cimport (
    BY_OTHERS, attributes_of, binds_as_jax_has_it, has_attributes, implementation_of, is_ordinary
)
from jaxmarshal._core.plans.call cimport StaticRule
from jaxmarshal._core.plans.jit_configuration cimport staging_context
from jaxmarshal._core.plans.jit_plans cimport JitPlans, plans_of_jitted
from jaxmarshal._core.replay.key cimport is_own_impl
from jaxmarshal._core.values.array_words cimport words_are_vouched_for
from jaxmarshal._core.values.capi cimport (
    PyThread_get_thread_ident, PyTuple_GET_SIZE, jm_tuple_items
)
from jaxmarshal._core.values.errors cimport propagate
from jaxmarshal._core.values.kinds cimport (
    JM_ARRAY, JM_DICT, JM_KEY_ARRAY, JM_LIST, JM_LITERAL, JM_NDARRAY, JM_NONE, JM_REF, JM_TOKEN,
    JM_TRACER, JM_TUPLE, Py_TYPE, jm_kind_is_host, jm_kind_of_type, types
)
from jaxmarshal._core.values.methods cimport PyObject_Vectorcall, named_arguments, vectorcallfunc
from jaxmarshal._core.values.narrowing cimport narrows_silently
from jaxmarshal._reports.counting cimport TRACE

from jaxmarshal._jax import private

cdef extern from "jaxmarshal/compat.h":
    ctypedef int (*getbufferproc)(PyObject*, Py_buffer*, int) noexcept
    getbufferproc* jm_buffer_slot(PyTypeObject* cls) noexcept
    vectorcallfunc jm_swap_vectorcall(PyObject* function, vectorcallfunc call) noexcept

cdef extern from *:
    vectorcallfunc PyVectorcall_Function(PyObject* function) noexcept

cdef object _jit_primitive = private.jit_primitive
cdef object _custom_jvp_primitive = private.custom_jvp_primitive
cdef object _jaxprs_in = private.jaxprs_in_params
cdef object _key_type = private.PRNGKeyArray
cdef object _x64 = private.enable_x64
cdef object _typed_array = private.TypedNdArray
cdef object _aval_of = private.abstractify

# Constants besides host data: they are what they are, whatever else happens.
cdef tuple _constant_types = (
    type(None), bool, int, float, complex, str, type, np.dtype, type(Ellipsis), Enum, frozenset,
)


cdef class Step:
    """One call of a tape."""


cdef class Value:
    def __cinit__(self, Py_ssize_t number):
        self.number = number


cdef class Base:
    def __cinit__(self, Value key):
        self.key = key


cdef class Key:
    def __cinit__(self, impl, words, bint is_plain):
        self.impl = impl
        self.words = words
        self.is_plain = is_plain


cdef class Cast:
    def __cinit__(self, Value source, dtype):
        self.source = source
        self.dtype = dtype


cdef class Nested:
    def __cinit__(self, make, list items):
        self.make = make
        self.items = items


cdef class Tape:
    def __cinit__(self, list sources):
        cdef int reason
        self.thread = PyThread_get_thread_ident()
        self.context = staging_context(&reason)
        self.broken = self.context is None
        self.steps = []
        self.primitives = {}
        self.values = {}
        self.functions = []
        self.alive = []
        self.host = []
        for source in sources:
            if jm_kind_is_host(jm_kind_of_type(&types, Py_TYPE(<PyObject*>source))):
                self.host.append(len(self.alive))
            _add(self, source)


cdef int _add(Tape tape, object array) except -1:
    cdef Value value = Value(len(tape.alive))
    tape.alive.append(array)
    if jm_kind_of_type(&types, Py_TYPE(<PyObject*>array)) == JM_KEY_ARRAY:
        base = array._base_array
        if id(base) in tape.values and not tape.steps:
            tape.broken = True
        tape.values.setdefault(id(base), Base(value))
    tape.values[id(array)] = value
    return 0


# --- Describing ----------------------------------------------------------------------------------

cdef object _unknown = object()    # what an object is that cannot be described


cdef bint _is_constant(object arg, int kind) except -1:
    """Is it something that JAX, or the caller, would hand on just so the next time?"""
    cdef object cls = type(arg)
    if kind == JM_TRACER or kind == JM_REF or kind == JM_TOKEN:
        return False
    if jm_kind_is_host(kind) or kind == JM_LITERAL or kind == JM_NONE:
        return True
    if isinstance(arg, _constant_types) or cls in private.value_tuples:
        return True
    if cls is FunctionType:
        return (arg.__module__ or "").startswith("jax.") and arg.__closure__ is None
    module = cls.__module__
    return module == "jaxlib._jax" or module.startswith(("jax.", "jax._src."))


def _make_dict(names, values):
    return dict(zip(names, values))


cdef object _make_tuple_of(object cls):
    return cls._make if hasattr(cls, "_make") else cls


cdef object _describe_items(Tape tape, object items):
    """The descriptions of all, or None where one of them is unknown."""
    described = [_describe(tape, item) for item in items]
    return None if any([item is _unknown for item in described]) else described


cdef bint _is_filled(object described) except -1:
    return type(described) in (Value, Base, Key, Cast, Nested)


cdef object _describe_container(Tape tape, object container, int kind):
    cdef list items
    if kind == JM_DICT:
        items = _describe_items(tape, container.values())
        if items is None:
            return _unknown
        names = tuple(container)
        if not all([type(name) is str for name in names]):
            return _unknown
        return Nested(partial(_make_dict, names), items)
    items = _describe_items(tape, container)
    if items is None:
        return _unknown
    if type(container) is not list and not any([_is_filled(item) for item in items]):
        return container
    return Nested(list if type(container) is list else _make_tuple_of(type(container)), items)


cdef object _describe_key(Tape tape, object key):
    words = tape.values.get(id(key._base_array))
    if words is None or not is_own_impl(key._impl):
        return _unknown
    is_plain = type(key) is _key_type and vars(key) == vars(_make_key(key._impl, key._base_array))
    return Key(key._impl, words, is_plain)


cdef bint _is_view_of(object data, object source) except -1:
    """Is it the very array, or a view of all of it as it is?"""
    if not isinstance(source, np.ndarray) or data.dtype != source.dtype:
        return False
    if data.shape != source.shape:
        return False
    return data.ctypes.data == source.ctypes.data and data.strides == source.strides


cdef bint _is_cast_of(object data, object source) except -1:
    if source.dtype.kind == "c" and data.dtype.kind != "c":
        return False    # numpy warns of it
    if data.shape != source.shape or source.nbytes > MOST_CAST:
        return False
    if source.dtype.char in "dD" and source.nbytes > 8 * MOST_SCANNED:
        return False    # more than is looked through for what numpy warns of
    with np.errstate(all="ignore"):
        return np.asarray(source, data.dtype).tobytes() == data.tobytes()


cdef object _describe_host(Tape tape, object data, int kind):
    """Host data, or a literal, on a tape with host data among its sources."""
    if kind == JM_LITERAL and not isinstance(data, np.ndarray):
        return _unknown if tape.casts else data    # a number
    if kind == JM_LITERAL and data.aval.weak_type or not isinstance(data, np.ndarray):
        return _unknown
    found = [number for number in tape.host if _is_view_of(data, tape.alive[number])]
    if len(found) > 1:
        return _unknown    # whose data they are is not known
    if found:
        return _unknown if _is_narrowed(tape.alive[found[0]]) else Value(found[0])
    if tape.casts:    # there is one
        number = tape.host[0]
        is_cast = _is_cast_of(data, tape.alive[number])
        return Cast(Value(number), data.dtype) if is_cast else _unknown
    return data if data.ndim == 0 and kind == JM_LITERAL else _unknown


cdef bint _is_narrowed(object data) except -1:
    """Does handing it on convert it, of which numpy may warn?"""
    return data.dtype.char in "dD" and _x64.value is False


cdef object _describe(Tape tape, object arg):
    """What it is: a constant, or something to be filled in; or `_unknown`."""
    cdef int kind = jm_kind_of_type(&types, Py_TYPE(<PyObject*>arg))
    known = tape.values.get(id(arg))
    if known is not None:
        if jm_kind_is_host(kind) and _is_narrowed(arg):
            return _unknown
        return known
    if tape.host and (jm_kind_is_host(kind) or kind == JM_LITERAL):
        return _describe_host(tape, arg, kind)
    if kind == JM_ARRAY:
        return _unknown
    if kind == JM_KEY_ARRAY:
        return _describe_key(tape, arg)
    if kind == JM_LIST or kind == JM_TUPLE or kind == JM_DICT:
        return _describe_container(tape, arg, kind)
    if isinstance(arg, tuple) and hasattr(type(arg), "_make"):
        return _describe_container(tape, arg, JM_TUPLE)
    if tape.with_functions and (kind == JM_NDARRAY or kind == JM_LITERAL):
        return arg if np.ndim(arg) == 0 and kind == JM_LITERAL else _unknown
    return arg if _is_constant(arg, kind) else _unknown


cdef bint _holds_arrays_alone(object described) except -1:
    if type(described) is Nested:
        return all([
            item is None or _holds_arrays_alone(item) for item in (<Nested>described).items
        ])
    return type(described) is tuple and not described or _is_filled(described)


cdef object describe_result(Tape tape, object result):
    described = _describe(tape, result)
    if described is _unknown or not _holds_arrays_alone(described):
        return None
    return described


# --- Steps ---------------------------------------------------------------------------------------

cdef bint _is_about(Tape tape) noexcept:
    """Is what happens now a part of what the tape is about?"""
    return not tape.broken and tape.thread == PyThread_get_thread_ident()


cdef bint is_about_this_thread() noexcept:
    return current is not None and current.thread == PyThread_get_thread_ident()


cdef list _arrays_in(object result):
    """The arrays of a result, or None where it has anything else in it."""
    cdef int kind = jm_kind_of_type(&types, Py_TYPE(<PyObject*>result))
    cdef list found = []
    if kind == JM_ARRAY or kind == JM_KEY_ARRAY:
        return [result]
    if kind == JM_DICT:
        result = list(result.values())
    elif not isinstance(result, (list, tuple)):
        return found if kind == JM_NONE else None
    for item in result:
        inner = _arrays_in(item)
        if inner is None:
            return None
        found += inner
    return found


cdef int _note(
    Tape tape, object function, PyObject** args, Py_ssize_t n, PyObject* names, object result
) except -1:
    cdef Step step = Step()
    cdef Py_ssize_t i, named = 0 if names == NULL else PyTuple_GET_SIZE(names)
    cdef list described = [_describe(tape, <object>args[i]) for i in range(n + named)]
    cdef list arrays = _arrays_in(result)
    if arrays is None or any([item is _unknown for item in described]):
        tape.broken = True
        return 0
    if function is put_function and not _has_values(described[0]):
        tape.broken = True    # each call puts data of its own
        return 0
    step.function = weakref.ref(function)
    tape.functions.append(function)
    step.args = tuple(described)
    step.names = <object>names if named else None
    step.first = len(tape.alive)
    step.results = len(arrays)
    tape.steps.append(step)
    for array in arrays:
        _add(tape, array)
    return 0


cdef void note(
    object function, PyObject** args, Py_ssize_t n, PyObject* names, PyObject* result
) noexcept:
    cdef int reason
    cdef Tape tape = current
    if not _is_about(tape):
        return
    try:
        # Under another configuration than that of the whole call, it would be another step.
        if staging_context(&reason) is not tape.context:
            tape.broken = True
        else:
            _note(tape, function, args, n, names, <object>result)
    except Exception:
        tape.broken = True


cdef bint _has_effects(object prim, dict params) except -1:
    """Would a computation do more than return its results, or call Python?

    A replay leaves out what needs no result, and the reference makes a call anew that has failed.
    """
    if "callback" in prim.name:
        return True
    for jaxpr in _jaxprs_in(params):
        if jaxpr.effects or any([_has_effects(step.primitive, step.params) for step in jaxpr.eqns]):
            return True
    return False


cdef int _note_primitive(Tape tape, object prim, dict params) except -1:
    cdef Context context
    cdef int reason
    if _has_effects(prim, params):
        tape.broken = True
        return 0
    if prim is _jit_primitive:
        return 0    # of a jitted function that is called, and is a step
    if prim is _custom_jvp_primitive:
        return 0    # calls its function, outside of a trace; see `recording._described`
    context = staging_context(&reason)
    if context is None and reason == TRACE:
        return 0    # within one that is traced
    if context is not tape.context or not is_ordinary(prim) or not binds_as_jax_has_it(prim):
        tape.broken = True
        return 0
    if id(prim) not in tape.primitives:
        tape.primitives[id(prim)] = (prim, attributes_of(prim, of_one_program=True))
    if tape.primitives[id(prim)][1] is None or implementation_of(prim) == BY_OTHERS:
        tape.broken = True
    return 0


cdef void note_primitive(PyObject* prim, PyObject** params, PyObject* names) noexcept:
    cdef Tape tape = current
    if not _is_about(tape):
        return
    try:
        _note_primitive(tape, <object>prim, named_arguments(params, names))
    except Exception:
        tape.broken = True


cdef bint have_their_rules(list primitives) except -1:
    for prim, attributes in primitives:
        if not has_attributes(prim, attributes):
            return False
    return True


# --- Reads ---------------------------------------------------------------------------------------

cdef enum:
    READERS = 3

cdef object _array_type = private.ArrayImpl
cdef tuple _readers = private.array_readers if private.HAVE_REPLAY else ()
cdef vectorcallfunc _read[READERS]       # what each is called by, while there is a tape
cdef getbufferproc _get_buffer = NULL    # that of the reference's arrays, while there is a tape
assert len(_readers) <= READERS


cdef void _note_read() noexcept:
    """Somebody looks at the elements of an array: the next time, they may be others."""
    if is_about_this_thread():
        current.broken = True


cdef int _noted_get_buffer(PyObject* array, Py_buffer* view, int flags) noexcept:
    _note_read()
    return _get_buffer(array, view, flags)


cdef PyObject* _noted_read(
    PyObject* reader, PyObject** args, size_t nargsf, PyObject* names
) noexcept:
    cdef Py_ssize_t i = 0
    _note_read()
    while <PyObject*>_readers[i] != reader:
        i += 1
    return _read[i](reader, args, nargsf, names)


cdef int _watch_reads(bint on) except -1:
    """Hear of whoever looks at the elements of an array, or stop to.

    The class of arrays stays as it is: Python 3.13 lets a class change a thousand times, and looks
    up everything anew in one that has changed more often.
    """
    global _get_buffer
    cdef Py_ssize_t i
    cdef getbufferproc* slot = jm_buffer_slot(<PyTypeObject*>_array_type)
    for i in range(len(_readers)):
        if on:
            _read[i] = jm_swap_vectorcall(<PyObject*>_readers[i], <vectorcallfunc>_noted_read)
        else:
            jm_swap_vectorcall(<PyObject*>_readers[i], _read[i])
    if on and slot != NULL and slot[0] != NULL:
        _get_buffer = slot[0]
        slot[0] = _noted_get_buffer
    elif slot != NULL and slot[0] == _noted_get_buffer:
        slot[0] = _get_buffer
    return 0


cdef Tape start_tape(list sources, bint with_functions=False, bint casts=False):
    global current
    cdef Tape tape = Tape(sources)
    tape.with_functions = with_functions
    tape.casts = casts
    if current is not None:    # of another thread, which had its turn since somebody asked
        return None
    current = tape
    _watch_reads(True)
    return tape


cdef int stop_tape() except -1:
    global current
    _watch_reads(False)
    current = None
    return 0


cdef bint is_result_of(Tape tape, object result, object function, object arg) except -1:
    cdef Step step
    value = tape.values.get(id(result))
    if tape.broken or type(value) is not Value:
        return False
    for step in tape.steps:
        if step.first == (<Value>value).number:
            return (
                step.function() is function and step.names is None
                and len(step.args) == 1 and step.args[0] is arg
            )
    return False


# --- Taking steps --------------------------------------------------------------------------------

cdef object _make_key(object impl, object words):
    """A typed key as its class makes it of an array, without the checks."""
    key = _key_type.__new__(_key_type)
    key._impl = impl
    key._consumed = False
    key._base_array = words
    return key


cdef object _cast(object data, object dtype):
    """Raises where numpy may warn, whatever `np.errstate` says: then the reference does it."""
    if type(data) is int:    # a row, or too large for the dtype
        return np.asarray(data, dtype)
    if data.dtype.kind in "iub" and (dtype.kind in "iub" or np.can_cast(data.dtype, dtype)):
        return np.asarray(data, dtype)    # integers wrap without a word
    if data.dtype.char + dtype.char in ("df", "DF") and type(data) is np.ndarray:
        if not narrows_silently(data):
            raise FloatingPointError
        return np.asarray(data, dtype)
    with np.errstate(all="raise"):
        return np.asarray(data, dtype)


cdef int cast_sources(Step step, PyObject** values) except -1:
    for arg in step.args:
        if type(arg) is Cast:
            fill_arguments(arg, values)
    return 0


cdef object fill_arguments(object described, PyObject** values):
    cdef object cls = type(described)
    if cls is Value:
        return <object>values[(<Value>described).number]
    if cls is Base:
        return (<object>values[(<Base>described).key.number])._base_array
    if cls is Key:
        words = fill_arguments((<Key>described).words, values)
        if (<Key>described).is_plain:
            return _make_key((<Key>described).impl, words)
        return _key_type((<Key>described).impl, words)
    if cls is Cast:
        return _cast(<object>values[(<Cast>described).source.number], (<Cast>described).dtype)
    if cls is Nested:
        items = [fill_arguments(item, values) for item in (<Nested>described).items]
        return (<Nested>described).make(items)
    return described


cdef int _keep_results(
    Step step, PyObject* result, PyObject** values, Py_ssize_t* count
) except -1:
    """Takes the reference to the result."""
    cdef object made = <object>result
    if step.results == 1 and jm_kind_of_type(&types, Py_TYPE(result)) == JM_ARRAY:
        values[count[0]] = result
        count[0] += 1
        return 0
    Py_DECREF(made)
    arrays = _arrays_in(made)
    if arrays is None or len(arrays) != step.results:
        raise RuntimeError("a step has other results than the last time")
    for array in arrays:
        Py_INCREF(array)
        values[count[0]] = <PyObject*>array
        count[0] += 1
    return 0


cdef inline PyObject* _call(
    Step step, PyObject* function, PyObject** args, Py_ssize_t n, PyObject* names, Context context
) noexcept:
    if PyVectorcall_Function(function) != accelerated_call:
        return PyObject_Vectorcall(function, args, n, names)
    if step.takes_host or not words_are_vouched_for():    # it has no plan that fits
        return reference_call(function, args, n, names)
    return call_in_context(function, args, n, names, context)


cdef int take_step(
    Step step, PyObject* function, PyObject** values, Py_ssize_t* count, Context context
) except -1:
    cdef Py_ssize_t i, n = len(step.args)
    cdef PyObject* args[MOST_ARGS]
    cdef PyObject** constants = jm_tuple_items(step.args)
    cdef PyObject* names = NULL
    cdef PyObject* result
    cdef tuple filled
    if step.names is not None:
        names = <PyObject*>step.names
        n -= PyTuple_GET_SIZE(names)
    if step.is_plain:
        for i in range(len(step.args)):
            args[i] = constants[i] if step.values[i] < 0 else values[step.values[i]]
        result = _call(step, function, args, n, names, context)
    else:
        filled = tuple([fill_arguments(arg, values) for arg in step.args])
        result = _call(step, function, jm_tuple_items(filled), n, names, context)
    if result == NULL:
        propagate()
    return _keep_results(step, result, values, count)


cdef int _make_plain(Step step) except -1:
    """See whether its arguments need no description."""
    cdef Py_ssize_t i
    step.is_plain = len(step.args) <= MOST_ARGS
    for i in range(len(step.args)):
        arg = step.args[i]
        if step.is_plain:
            step.values[i] = (<Value>arg).number if type(arg) is Value else -1
            step.is_plain = type(arg) is Value or not _is_filled(arg)
    return 0


cdef int _collect(object described, set needed) except -1:
    """The numbers of the values in a description."""
    cdef object cls = type(described)
    if cls is Value:
        needed.add((<Value>described).number)
    elif cls is Base:
        needed.add((<Base>described).key.number)
    elif cls is Key:
        _collect((<Key>described).words, needed)
    elif cls is Cast:
        needed.add((<Cast>described).source.number)
    elif cls is Nested:
        for item in (<Nested>described).items:
            _collect(item, needed)
    return 0


# --- What is the same every time -----------------------------------------------------------------

cdef enum:
    MOST_BYTES = 4096          # of an array that is kept
    MOST_CAST = 1 << 22        # bytes of data that are compared with what became of them
    MOST_SCANNED = 1 << 14     # numbers that are looked through in a call


cdef bint _has_values(object described) except -1:
    """Does anything in it depend on the call?"""
    if type(described) is Nested:
        return any([_has_values(item) for item in (<Nested>described).items])
    return _is_filled(described)


cdef object _with_known(object described, dict known):
    """A description with what is known, a constant or another Value, in the place of a number."""
    cdef object cls = type(described)
    if cls is Value:
        return known.get((<Value>described).number, described)
    if cls is Base:
        key = _with_known((<Base>described).key, known)
        return Base(key) if type(key) is Value else key._base_array
    if cls is Key:
        words = _with_known((<Key>described).words, known)
        key = Key((<Key>described).impl, words, (<Key>described).is_plain)
        return key if _is_filled(words) else fill_arguments(key, NULL)
    if cls is Cast:
        return Cast(_with_known((<Cast>described).source, known), (<Cast>described).dtype)
    if cls is Nested:
        items = [_with_known(item, known) for item in (<Nested>described).items]
        return Nested((<Nested>described).make, items)
    return described


cdef bint _is_one_of(object arg, tuple numbers) except -1:
    """May it be one of these ints, or have been computed of one?"""
    return bool(numbers) and _number_in(arg) in numbers


cdef int fold_constants(Tape tape, object described, tuple numbers=()) except -1:
    cdef Step step
    cdef set needed = set()
    cdef dict constants = {}
    _collect(described, needed)
    for step in tape.steps:
        if step.function() is put_function:    # its result may be what it takes
            _collect(step.args[0], needed)
    for step in tape.steps:
        step.args = tuple([_with_known(arg, constants) for arg in step.args])
        results = range(step.first, step.first + step.results)
        if not needed.isdisjoint(results):
            continue
        if any([_has_values(arg) or _is_one_of(arg, numbers) for arg in step.args]):
            continue
        for number in results:
            if tape.alive[number].size * tape.alive[number].dtype.itemsize <= MOST_BYTES:
                constants[number] = tape.alive[number]
    return 0


cdef object _device_of(Tape tape, Step step):
    """The one device that a step's arrays are on, or None."""
    cdef set found = set()
    for arg in (*step.args, *tape.alive[step.first:step.first + step.results]):
        if type(arg) is Value:
            arg = tape.alive[(<Value>arg).number]
        if type(arg) is _array_type:
            found.update(arg.devices())
    return found.pop() if len(found) == 1 else None


cdef object _on_device(object data, object device):
    """An array of the very aval that a call gives to host data. Raises where that may warn."""
    aval = private.abstractify(data)
    with np.errstate(all="raise"):
        data = np.asarray(data, aval.dtype)
    return private.batched_device_put(
        aval, private.SingleDeviceSharding(device), [data], [device], committed=False
    )


cdef bint _is_static(StaticRule rule, Step step, Py_ssize_t i) except -1:
    """Is it an argument by whose value the step is compiled?"""
    cdef Py_ssize_t by_position = len(step.args) - len(step.names or ())
    if rule is None:
        return False
    if i >= by_position:
        return step.names[i - by_position] in rule.names
    return i in rule.numbers or i - by_position in rule.numbers


def _same(function):
    """What a weak reference would return, of a function that is kept."""
    return function


cdef int keep_functions(Tape tape) except -1:
    cdef Step step
    cdef Py_ssize_t i
    for i in range(len(tape.steps)):
        step = <Step>tape.steps[i]
        if (<PyObject*>tape.functions[i]).ob_refcnt == 1:
            step.function = partial(_same, tape.functions[i])
    return 0


cdef int prepare_constants(Tape tape) except -1:
    cdef Step step
    cdef JitPlans plans
    for step in tape.steps:
        plans = plans_of_jitted(step.function())
        device = _device_of(tape, step)
        if plans is not None and device is not None:
            step.args = tuple([
                arg if _is_static(plans.rule, step, i) else _prepared(arg, device)
                for i, arg in enumerate(step.args)
            ])
    return 0


cdef object _prepared(object arg, object device):
    cdef int kind = jm_kind_of_type(&types, Py_TYPE(<PyObject*>arg))
    if not jm_kind_is_host(kind) and kind != JM_LITERAL:
        return arg
    if getattr(arg, "nbytes", 0) > MOST_BYTES:
        return arg
    try:
        return _on_device(arg, device)
    except Exception:
        return arg


# --- Only what is needed -------------------------------------------------------------------------

cdef Step _numbered_anew(Step step, dict values):
    """The step with its values numbered anew; those of its results are added."""
    cdef Step other = Step()
    other.function = step.function
    other.names = step.names
    other.args = tuple([_with_known(arg, values) for arg in step.args])
    other.first = len(values)
    other.results = step.results
    for number in range(step.first, step.first + step.results):
        values[number] = Value(len(values))
    _make_plain(other)
    return other


cdef bint _takes_any(Step step, list sources) except -1:
    """Is one of the sources of these numbers among its arguments?"""
    cdef set taken = set()
    for arg in step.args:
        _collect(arg, taken)
    return not taken.isdisjoint(sources)


cdef tuple needed_steps(Tape tape, Py_ssize_t sources, object described):
    cdef Step step
    cdef set needed = set()
    cdef list kept = []
    cdef dict values = {number: Value(number) for number in range(sources)}
    _collect(described, needed)
    for step in reversed(tape.steps):
        if not needed.isdisjoint(range(step.first, step.first + step.results)):
            kept.append(step)
            for arg in step.args:
                _collect(arg, needed)
    steps = [_numbered_anew(step, values) for step in reversed(kept)]
    if len(values) > MOST_VALUES:
        return None
    for step in steps:
        step.takes_host = _takes_any(step, tape.host)
    return steps, _with_known(described, values)


# --- Numbers that differ -------------------------------------------------------------------------

cdef bint _is_same_constant(object a, object b) except -1:
    if type(a) is not type(b) or _is_filled(a):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a) is _array_type:    # of a step that was folded
        return (
            a.aval == b.aval and a.sharding == b.sharding and a.committed == b.committed
            and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        )
    if type(a) is _typed_array:
        return _aval_of(a) == _aval_of(b) and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    if type(a) is float or type(a) is complex:
        return repr(a) == repr(b)
    if type(a) is tuple:
        return len(a) == len(b) and all([_is_same_constant(x, y) for x, y in zip(a, b)])
    return a is b or (isinstance(a, (int, str, np.dtype)) and a == b)


cdef object _number_in(object constant):
    """The int that a constant is, alone or as an array; or None."""
    if type(constant) is int:
        return constant
    if type(constant) not in (np.ndarray, _typed_array) and not isinstance(constant, np.integer):
        return None
    if constant.shape or constant.dtype.kind not in "iu" or _aval_of(constant).weak_type:
        return None
    return int(np.asarray(constant))


cdef object _merged_arg(object a, tuple ones, object b, tuple others):
    """The argument, with Value(-1 - i) for the i-th number; `_unknown` where it differs otherwise.
    """
    cdef Py_ssize_t i
    if type(a) is Value and type(b) is Value:
        return a if (<Value>a).number == (<Value>b).number else _unknown
    if type(a) is not type(b):
        return _unknown
    one, other = _number_in(a), _number_in(b)
    if one is None or other is None or one == other:
        return a if _is_same_constant(a, b) else _unknown
    for i in range(len(ones)):
        if one == ones[i] and other == others[i]:
            if type(a) is int:
                return Value(-1 - i)
            return Cast(Value(-1 - i), a.dtype) if a.dtype == b.dtype else _unknown
    return _unknown


cdef Step _merged_step(Step a, tuple ones, Step b, tuple others):
    cdef Step step = Step()
    function = a.function()
    if function is None or b.function() is not function or a.names != b.names:
        return None
    if len(a.args) != len(b.args) or a.first != b.first or a.results != b.results:
        return None
    args = [_merged_arg(x, ones, y, others) for x, y in zip(a.args, b.args)]
    if any([arg is _unknown for arg in args]):
        return None
    step.function, step.names, step.args = a.function, a.names, tuple(args)
    step.first, step.results = a.first, a.results
    return step


cdef tuple merged_steps(
    tuple first, tuple ones, tuple second, tuple others, Py_ssize_t sources
):
    cdef list steps
    cdef dict values
    if len(first[0]) != len(second[0]) or type(first[1]) is not Value:
        return None
    if _merged_arg(first[1], (), second[1], ()) is _unknown:
        return None
    steps = [_merged_step(a, ones, b, others) for a, b in zip(first[0], second[0])]
    if any([step is None for step in steps]):
        return None
    values = {number: Value(number) for number in range(sources)}
    values.update({-1 - i: Value(sources + i) for i in range(len(ones))})
    steps = [_numbered_anew(step, values) for step in steps]
    if len(values) > MOST_VALUES:
        return None
    return steps, _with_known(first[1], values)


# --- Several steps as one ------------------------------------------------------------------------

def numbers_needed(tuple described):
    """The numbers of the sources and results that descriptions are filled in with, as a set."""
    cdef set needed = set()
    for item in described:
        _collect(item, needed)
    return needed


cdef Step _fused_step(tuple item, dict values):
    cdef Step step = Step()
    function, inputs, outputs = item
    step.function = partial(_same, function)
    step.args = tuple([values[number] for number in inputs])
    step.first = len(values)
    step.results = len(outputs)
    for number in outputs:
        values[number] = Value(len(values))
    _make_plain(step)
    return step


def renumbered(list taken, described, Py_ssize_t sources):
    """Steps in a new order, numbered anew, and the description of the result.

    Args:
      taken: a Step for each that stays, and for several that became one `(function, inputs,
        outputs)`: the numbers of the values that it takes and returns, in their order.
      described: the description of the result.
      sources: how many there are.
    """
    cdef dict values = {number: Value(number) for number in range(sources)}
    steps = [
        _numbered_anew(item, values) if type(item) is Step else _fused_step(item, values)
        for item in taken
    ]
    return steps, _with_known(described, values)
