"""Keys of calls: plain values by type and value, arrays by their places."""

import weakref
from types import FunctionType

import numpy as np

cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

from jaxmarshal._core.context.configuration cimport state_is
from jaxmarshal._core.values.array_words cimport array_aval
from jaxmarshal._core.values.capi cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from jaxmarshal._core.values.kinds cimport (
    JM_ARRAY, JM_BOOL, JM_COMPLEX, JM_DICT, JM_FLOAT, JM_INT, JM_KEY_ARRAY, JM_LIST, JM_NDARRAY,
    JM_NONE, JM_NP_SCALAR, JM_OTHER, JM_TUPLE, Py_TYPE, jm_kind_of_type, kind_of_unknown, types
)
from jaxmarshal._core.values.methods cimport Method
from jaxmarshal._core.values.narrowing cimport bits_of
from jaxmarshal._reports.counting cimport HIT, OPTIONS, UNKNOWN_TYPE, VALUE, reason_of_kind

from jaxmarshal._jax import private

cnp.import_array()

cdef extern from *:
    object PyTuple_New(Py_ssize_t n)
    void PyTuple_SET_ITEM(object items, Py_ssize_t i, object item) noexcept

cdef object _ARRAY = object()     # an array that is there once
cdef object _TRUE = object()      # the bools compare equal to numbers
cdef object _FALSE = object()
# JAX's own kinds of keys, by id: the parts of keys of calls that they are. Hashing one runs Python.
cdef dict _own_impls = {id(impl): ("key", id(impl)) for impl in private.prng_impls}
cdef frozenset _own_impl_names = private.prng_impl_names
cdef dict _all_impls = private.all_prng_impls
cdef object _update_type = private.IndexUpdateRef
cdef object _device_type = private.Device
cdef object _jitted_type = private.PjitFunction
# Functions of the reference that are neither: they stay, and their class compares them by value.
cdef frozenset _own_ufuncs = frozenset([
    id(value) for value in vars(private.jnp).values()
    if private.HAVE_REPLAY and type(value) is private.ufunc
])

cdef long long TOO_LARGE = <long long>1 << 31    # for an int of 32 bits

cdef enum:
    MOST_ITEMS = 64    # of a list or a tuple, as in `jnp.array([1, 2])`
    MOST_ROWS = 3      # of an index
    HOST_PARTS = 64    # of numpy arrays, that are kept; a power of two
    MOST_DIMS = 4      # of those


# --- Dtypes --------------------------------------------------------------------------------------

cdef dict _dtypes = {}    # id of what names a dtype -> (it, its part of a key)


def _fill_dtypes():
    for dtype in private.jax_dtypes or ():
        for name in (dtype, dtype.type, getattr(private.jnp, dtype.name, dtype)):
            _dtypes[id(name)] = (name, ("dtype", len(_dtypes)))
    for name in (bool, int, float, complex):
        _dtypes[id(name)] = (name, ("dtype", len(_dtypes)))


_fill_dtypes()


cdef object _dtype_part(object dtype):
    """The part of one of JAX's dtypes, or of a type that names one; else None."""
    known = _dtypes.get(id(dtype))
    return None if known is None else known[1]


# --- Functions -----------------------------------------------------------------------------------

cdef object function_part(object function):
    """The part of one of the reference's functions, which is there for good.

    Those of numpy's kind are hashed and compared in Python.
    """
    return ("ufunc", id(function)) if type(function) is private.ufunc else function


# --- Values --------------------------------------------------------------------------------------

cdef void release_sources(Sources* sources) noexcept:
    cdef Py_ssize_t i
    for i in range(sources.count):
        Py_DECREF(<object>sources.items[i])
    sources.count = 0


cdef object _source_part(object array, Sources* sources, int* reason):
    """An array or a typed key: where it was before among the arguments, or that it is new."""
    cdef Py_ssize_t i
    for i in range(sources.count):
        if sources.items[i] == <PyObject*>array:
            return ("again", i)
    if sources.count == MOST_SOURCES:
        reason[0] = OPTIONS
        return None
    Py_INCREF(array)
    sources.items[sources.count] = <PyObject*>array
    sources.count += 1
    return _ARRAY


cdef bint is_own_impl(object impl) except -1:
    """Is it one of JAX's own kinds of keys?"""
    return id(impl) in _own_impls


cdef object _key_part(object key, Sources* sources, int* reason):
    impl = _own_impls.get(id(key._impl))
    if impl is None:
        reason[0] = OPTIONS    # it has functions of the user's
        return None
    part = _source_part(key, sources, reason)
    return impl if part is _ARRAY else part


# Those of numpy arrays that came before: making one anew costs more than the rest of a key.
cdef list _host_parts = [None] * HOST_PARTS
cdef PyObject* _host_dtypes[HOST_PARTS]    # borrowed from `_dtypes`
cdef int _host_ndims[HOST_PARTS]
cdef cnp.npy_intp _host_dims[HOST_PARTS][MOST_DIMS]


cdef object _part_of_ndarray(cnp.ndarray data):
    """The part of a numpy array with some dimensions, as it was made the last time, or None."""
    cdef object dtype = <object>cnp.PyArray_DESCR(data)
    cdef int i, ndim = cnp.PyArray_NDIM(data)
    cdef cnp.npy_intp dims[MOST_DIMS]    # finalizers may edit the array when the part is made
    cdef size_t place = <size_t><PyObject*>dtype >> 4
    memcpy(dims, cnp.PyArray_DIMS(data), ndim * sizeof(cnp.npy_intp))
    for i in range(ndim):
        place = place * 31 + <size_t>dims[i]
    place = (place ^ place >> 7) & (HOST_PARTS - 1)
    if (
        _host_dtypes[place] == <PyObject*>dtype and _host_ndims[place] == ndim
        and memcmp(_host_dims[place], dims, ndim * sizeof(cnp.npy_intp)) == 0
    ):
        return _host_parts[place]
    known = _dtype_part(dtype)
    if known is None:    # strings, records, the other byte order
        return None
    part = (np.ndarray, known, tuple([dims[i] for i in range(ndim)]))
    _host_parts[place] = part
    _host_dtypes[place], _host_ndims[place] = <PyObject*>dtype, ndim
    memcpy(_host_dims[place], dims, ndim * sizeof(cnp.npy_intp))
    return part


cdef object _part_of_host_data(object data, int kind, Sources* sources):
    """The part of host data, or None where it has none."""
    if kind == JM_NDARRAY and 0 < cnp.PyArray_NDIM(data) <= MOST_DIMS:
        return _part_of_ndarray(data)
    dtype = _dtype_part(data.dtype)
    if dtype is None or type(data) is np.bool_ or (sources.host == HOST_ARRAYS and not data.ndim):
        # As above; one of the two bools that numpy has; a number.
        return None
    return type(data), dtype, data.shape


cdef object _host_part(object data, int kind, Sources* sources, int* reason):
    """Host data by dtype and shape: which elements they have, no function asks that takes them."""
    part = _part_of_host_data(data, kind, sources)
    if part is None:
        reason[0] = OPTIONS
        return None
    place = _source_part(data, sources, reason)
    return part if place is _ARRAY else place


cdef object _items_part(str tag, object items, Sources* sources, int* reason):
    cdef list parts = [tag]
    if len(items) > MOST_ITEMS:
        reason[0] = OPTIONS
        return None
    if sources.host != HOST_ARRAYS:
        sources.host = NO_HOST
    for item in items:
        part = _part(item, sources, reason)
        if reason[0] != HIT:
            return None
        parts.append(part)
    return tuple(parts)


cdef object _dict_part(dict items, Sources* sources, int* reason):
    """A dict's names in their order, and what they name."""
    cdef tuple names = tuple(items)
    for name in names:
        if type(name) is not str:
            reason[0] = OPTIONS    # comparing it, or sorting it, may run code of the user's
            return None
    part = _items_part("dict", tuple(items.values()), sources, reason)
    return None if part is None else (names, part)


cdef object _part(object arg, Sources* sources, int* reason):
    """An argument's part of the key; sets the reason where it has none."""
    cdef int kind = jm_kind_of_type(&types, Py_TYPE(<PyObject*>arg))
    cdef object cls
    if kind == JM_ARRAY:
        return _source_part(arg, sources, reason)
    if kind == JM_NONE:
        return None
    if kind == JM_INT:
        if -TOO_LARGE <= arg < TOO_LARGE:
            return arg
        reason[0] = VALUE
        return None
    if kind == JM_BOOL:
        return _TRUE if arg else _FALSE
    if kind == JM_FLOAT:
        return ("float", bits_of(arg))
    if kind == JM_COMPLEX:
        return ("complex", bits_of(arg.real), bits_of(arg.imag))
    if kind == JM_KEY_ARRAY:
        return _key_part(arg, sources, reason)
    if sources.with_functions and kind in (JM_TUPLE, JM_LIST) and len(arg) == 1:
        if callable(arg[0]):    # `switch` calls an only branch each time, and traces nothing
            reason[0] = OPTIONS
            return None
    if kind == JM_TUPLE:
        return _items_part("tuple", arg, sources, reason)
    if kind == JM_LIST:
        return _items_part("list", arg, sources, reason)
    if kind == JM_DICT:
        return _dict_part(arg, sources, reason)
    if sources.host != NO_HOST and (kind == JM_NDARRAY or kind == JM_NP_SCALAR):
        return _host_part(arg, kind, sources, reason)
    cls = type(arg)
    if cls is _device_type:
        return arg    # each is there once
    if sources.with_functions and (cls is FunctionType or cls is _jitted_type or cls is Method):
        return weakref.ref(arg)    # those of live functions are equal if the functions are the same
    if sources.with_functions and id(arg) in _own_ufuncs:
        return function_part(arg)
    if cls is str:
        if arg in _all_impls and arg not in _own_impl_names:
            reason[0] = OPTIONS    # as above
            return None
        return ("str", arg)
    if cls is slice:
        return _items_part("slice", (arg.start, arg.stop, arg.step), sources, reason)
    if arg is Ellipsis:
        return Ellipsis
    if cls is _update_type:
        return _items_part("at", (arg.array, arg.index), sources, reason)
    part = _dtype_part(arg)
    if part is not None:
        return part
    if kind == JM_OTHER:
        kind = kind_of_unknown(arg)
    reason[0] = reason_of_kind(kind)
    if reason[0] == UNKNOWN_TYPE:
        reason[0] = OPTIONS    # host data, functions, shardings: nothing is wrong with them
    return None


cdef inline int _set(object key, Py_ssize_t i, object part) except -1:
    Py_INCREF(part)    # the tuple's
    PyTuple_SET_ITEM(key, i, part)
    return 0


cdef PyObject* key_of(
    object function, PyObject** args, Py_ssize_t n, PyObject* names, Sources* sources, int* reason
) except? NULL:
    cdef Py_ssize_t i, named = 0 if names == NULL else PyTuple_GET_SIZE(names)
    cdef object key = PyTuple_New(1 + n + 2 * named)
    cdef HostData allowed = sources.host
    cdef Py_ssize_t host_at = 1 if allowed == HOST_OPERAND else 0    # others decide: an axis, ...
    reason[0] = HIT
    _set(key, 0, function)
    for i in range(n + named):
        sources.host = allowed if i == host_at else NO_HOST
        _set(key, 1 + i, _part(<object>args[i], sources, reason))
        if reason[0] != HIT:
            return NULL
    for i in range(named):
        _set(key, 1 + n + named + i, <object>PyTuple_GET_ITEM(names, i))
    Py_INCREF(key)
    return <PyObject*>key


cdef list numbers_in(object key):
    cdef list found = []
    for part in key:
        if type(part) is int:
            found.append(part)
        elif type(part) is tuple:
            found += _numbers_of(part)
    return found


cdef list _numbers_of(tuple part):
    cdef double value
    cdef uint64_t bits
    if part and part[0] == "float":
        bits = part[1]
        memcpy(&value, &bits, sizeof(bits))
        return [value]
    if part and part[0] == "complex":
        return [complex(*[_numbers_of(("float", item))[0] for item in part[1:]])]
    if part and (part[0] in ("dtype", "again", "key", "ufunc") or isinstance(part[0], type)):
        return []    # those of a shape are none
    return numbers_in(part)


# --- Ints that are indices -----------------------------------------------------------------------

cdef inline bint _is_whole(object item) except -1:
    return type(item) is slice and item.start is None and item.stop is None and item.step is None


cdef object _row_part(object item, Py_ssize_t length, list rows):
    """The part of an index that is a row, or a slice that begins at one; False of others.

    Of one row alone, or of all, there is less to do, and so there is past the end.
    """
    cdef object cls = type(item), start, stop
    if cls is int:
        if not (length > 1 and -length <= item < length):
            return False
        rows.append(item if item >= 0 else item + length)
        return "row" if item >= 0 else "row from the back"
    if cls is not slice or item.step is not None:
        return False
    start, stop = item.start, item.stop
    if type(start) is not int or type(stop) is not int:
        return False
    if not 0 <= start < stop <= length or stop - start == length:
        return False
    rows.append(start)
    return stop - start


cdef tuple _index_part(object array, object index, list rows):
    """The part of an index of rows and slices, whose rows it adds; or None."""
    cdef list parts = [type(index) is tuple]
    cdef tuple items = index if type(index) is tuple else (index,)
    cdef tuple shape = array_aval(array).shape
    cdef Py_ssize_t i, axis, dots = -1, count = len(items)
    for i in range(count):
        if items[i] is Ellipsis:
            if dots >= 0:
                return None
            dots = i
    if count - (dots >= 0) > len(shape):
        return None
    for i in range(count):
        axis = i if dots < 0 or i < dots else len(shape) - (count - i)
        part = None if i == dots or _is_whole(items[i]) else _row_part(items[i], shape[axis], rows)
        if part is False:
            return None
        parts.append(Ellipsis if i == dots else part)
    return tuple(parts) if 0 < len(rows) <= MOST_ROWS else None


cdef object key_with_rows(
    object function, PyObject** args, Py_ssize_t n, PyObject* names, Sources* sources, list rows
):
    cdef Py_ssize_t i, first, named = 0 if names == NULL else PyTuple_GET_SIZE(names)
    cdef int reason = HIT
    cdef object what = <object>args[0], index
    cdef list parts
    if type(what) is _update_type:
        what, index, first = what.array, what.index, 1
    elif n == 2 and not named:
        index, first = <object>args[1], 2
    else:
        return None
    if jm_kind_of_type(&types, Py_TYPE(<PyObject*>what)) != JM_ARRAY:
        return None
    part = _index_part(what, index, rows)
    if part is None:
        return None
    parts = [function, "rows", first, part]
    _source_part(what, sources, &reason)
    for i in range(first, n + named):
        parts.append(_part(<object>args[i], sources, &reason))
        if reason != HIT:
            return None
    parts += [<object>PyTuple_GET_ITEM(names, i) for i in range(named)]
    return tuple(parts)


# --- States --------------------------------------------------------------------------------------

cdef tuple _states = private.states_of_random
cdef tuple _last_values = ()
cdef object _last_number = None
cdef dict _numbers = {}    # values of the states -> their number


cdef object _default_impl = private.default_prng_impl


cdef bint has_own_default_impl() except -1:
    return _default_impl.value in _own_impl_names


cdef object _states_now():
    global _last_values, _last_number
    cdef Py_ssize_t i
    cdef bint same = len(_last_values) == len(_states)
    if same:
        for i in range(len(_states)):
            if not state_is(_states[i], _last_values[i]):
                same = False
                break
    if not same:
        values = tuple([state.value for state in _states])
        number = _numbers.setdefault(values, ("states", len(_numbers)))
        _last_values, _last_number = values, number
        return number
    return _last_number


cdef object states_of(Sources* sources):
    return _states_now() if sources.with_states else None


cdef bint are_states_now(object states) except -1:
    return states is None or states is _states_now()
