"""Numpy data that JAX puts on the device first: `x[rng.permutation(n)[:8]]`, `x.at[i].set(data)`.

JAX decides nothing by the elements of an array of ints that is an index, but for those of 64 bits
that its ints of 32 do not hold: it adds the length of the axis to the negative ones, and hands them
to the device. So the result is that of an index on the device, made of the same ints. A numpy
scalar is an index like the int that it is.

Masks are another matter: JAX looks where they are true. Of what is set, added and so on JAX makes
an array before it asks for anything.
"""

cimport numpy as cnp
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t

from jaxmarshal._core.context.configuration cimport state_is
from jaxmarshal._core.placement.records cimport is_ordinary_data
from jaxmarshal._core.values.kinds cimport (
    JM_NDARRAY, JM_NP_SCALAR, Py_TYPE, jm_kind_of_type, types
)
from jaxmarshal._core.values.narrowing cimport narrows_silently
from jaxmarshal._reports.counting cimport enter, leave

import numpy as np

from jaxmarshal._core.entries.device_put import device_put
from jaxmarshal._jax import private

cnp.import_array()

cdef enum:
    MOST_INDICES = 1 << 20

cdef object _x64 = private.enable_x64
cdef object _left = object()    # stands for what is left to JAX


cdef bint is_of_numpy(object item) noexcept:
    cdef int kind = jm_kind_of_type(&types, Py_TYPE(<PyObject*>item))
    return kind == JM_NDARRAY or kind == JM_NP_SCALAR


cdef inline bint _has_any(object item) except -1:
    if type(item) is slice:
        return is_of_numpy(item.start) or is_of_numpy(item.stop) or is_of_numpy(item.step)
    return is_of_numpy(item)


cdef bint has_host_data(object index) except -1:
    if type(index) is tuple:
        for item in <tuple>index:
            if _has_any(item):
                return True
        return False
    return _has_any(index)


cdef object _narrowed(cnp.ndarray data):
    """Ints of 64 bits as ints of 32, in an array of their own; or `_left`."""
    cdef cnp.ndarray source = cnp.PyArray_FROM_OF(data, cnp.NPY_ARRAY_CARRAY_RO)
    cdef cnp.ndarray made = cnp.PyArray_SimpleNew(
        cnp.PyArray_NDIM(source), cnp.PyArray_DIMS(source), cnp.NPY_INT32
    )
    cdef int64_t* numbers = <int64_t*>cnp.PyArray_DATA(source)
    cdef int32_t* narrow = <int32_t*>cnp.PyArray_DATA(made)
    cdef Py_ssize_t i
    for i in range(cnp.PyArray_SIZE(source)):
        narrow[i] = <int32_t>numbers[i]
        if narrow[i] != numbers[i]:
            return _left
    return made


cdef object put_own(object data):
    enter()
    try:
        return device_put(data)
    finally:
        leave()


cdef object _on_device(cnp.ndarray data):
    """The index on the device, as an array that shares nothing with the program's; or `_left`."""
    cdef cnp.dtype dtype = data.dtype
    if (
        not cnp.PyTypeNum_ISINTEGER(dtype.type_num) or not cnp.PyArray_ISNOTSWAPPED(data)
        or not 0 < cnp.PyArray_NDIM(data) or cnp.PyArray_SIZE(data) > MOST_INDICES
    ):
        return _left
    if dtype.itemsize < 8 or state_is(_x64, True):
        own = cnp.PyArray_NewCopy(data, cnp.NPY_CORDER)
    elif dtype.kind == c"i":
        own = _narrowed(data)
    else:
        own = _left
    return own if own is _left else put_own(own)


cdef object _as_int(object number):
    """The int that a numpy scalar is; `_left` for others, to which JAX may add another way."""
    cdef cnp.dtype dtype = number.dtype
    return int(number) if dtype.kind == c"i" and dtype.itemsize >= 4 else _left


cdef object _item(object item):
    cdef int kind = jm_kind_of_type(&types, Py_TYPE(<PyObject*>item))
    if kind == JM_NDARRAY:
        return _on_device(<cnp.ndarray>item)
    if kind == JM_NP_SCALAR:
        return _as_int(item)
    if type(item) is slice and _has_any(item):
        bounds = [_bound(item.start), _bound(item.stop), _bound(item.step)]
        return _left if _left in bounds else slice(*bounds)
    return item


cdef object _bound(object bound):
    return _as_int(bound) if is_of_numpy(bound) and not isinstance(bound, cnp.ndarray) else bound


cdef object index_on_device(object index):
    cdef list items
    if type(index) is not tuple:
        made = _item(index)
        return None if made is _left else made
    items = []
    for item in <tuple>index:
        made = _item(item)
        if made is _left:
            return None
        items.append(made)
    return tuple(items)


cdef object value_on_device(object value):
    cdef cnp.ndarray own
    if not is_ordinary_data(value):
        return None
    own = np.array(value)    # shares nothing with the program's
    if own.dtype.char in "dD" and state_is(_x64, False) and not narrows_silently(own):
        return None
    return put_own(own)
