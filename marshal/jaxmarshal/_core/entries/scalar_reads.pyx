"""`float(x)`, `int(x)`, `bool(x)`, `items[x]`, `f"{x:.3f}"`: an array of one element is read.

JAX makes a numpy array first, of an array of its own that it makes of the array's one shard. Here
the element is read through the buffer protocol, which jaxlib offers for data on the CPU, once the
array is ready.

Where a computation on several devices has callbacks, its results and their parts carry the outcome,
and JAX raises an error of a callback when one is read. Nobody can see of an array whether it has
an outcome; but JAX asks for a token of each such computation. From the first of them on, reads in
such a process are left to JAX. On one device the call of the computation raises the error itself.
"""

cimport numpy as cnp
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from jaxmarshal._core.context.bypassed cimport is_untouched, placement_rules
from jaxmarshal._core.context.configuration cimport is_profiling
from jaxmarshal._core.values.array_words cimport (
    array_aval, array_buffer, array_dtype, array_sharding, has_data_of_jaxlib,
    words_are_vouched_for, words_of,
)
from jaxmarshal._core.values.errors cimport is_of_program
from jaxmarshal._core.values.forgetting cimport on_forget
from jaxmarshal._core.values.kinds cimport JM_ARRAY, Py_TYPE, jm_kind_of_type, types
from jaxmarshal._core.values.methods cimport (
    Method, PyObject_Vectorcall, PyVectorcall_NARGS, make_method, vectorcallfunc
)
from jaxmarshal._reports.counting cimport (
    count_hit_of, decided_to_hit, entries, entry_number, is_asked, named_number
)

import operator

from jaxmarshal._jax import private

cnp.import_array()

cdef extern from "jaxmarshal/compat.h":
    vectorcallfunc jm_swap_vectorcall(PyObject* function, vectorcallfunc call) noexcept

cdef extern from *:
    """
    static inline PyObject *jm_scalar(void *data, PyObject *dtype) {
        return PyArray_Scalar(data, (PyArray_Descr *)dtype, NULL);
    }
    """
    object jm_scalar(void* data, object dtype)

cdef enum:
    MOST_LOOKUPS = 8
    MOST_IN_VAIN = 8    # reads in a row of arrays whose data are elsewhere; then
    LEFT_THEN = 64      # so many are JAX's before the next one is looked at

cdef object _single_type = private.SingleDeviceSharding
cdef object _wait = private.block_until_ready


# --- Tokens --------------------------------------------------------------------------------------

cdef object _token_taker = private.token_taker
cdef vectorcallfunc _take_token = NULL       # what it is called by, while it is watched
cdef bint _are_tokens_possible = True        # did a computation have one, as far as is known?
cdef object _client_alone = None             # one that has a single device
cdef bint _is_left_to_jax = False            # is there none, and are tokens possible?


cdef PyObject* _noted_token(
    PyObject* taker, PyObject** args, size_t nargsf, PyObject* names
) noexcept:
    global _are_tokens_possible
    _are_tokens_possible = True
    jm_swap_vectorcall(taker, _take_token)
    return _take_token(taker, args, nargsf, names)


def watch_tokens() -> bool:
    """Read from now on, until a computation has a token. False where that is watched already.

    For when nothing has been computed yet. Afterwards nobody knows.
    """
    global _are_tokens_possible, _is_left_to_jax, _take_token
    if not _are_tokens_possible or not private.HAVE_SCALAR_READS:
        return False
    _take_token = jm_swap_vectorcall(<PyObject*>_token_taker, <vectorcallfunc>_noted_token)
    _are_tokens_possible = _is_left_to_jax = False
    return True


cdef bint _may_have_an_outcome(object sharding) except -1:
    """Can the array have come from a computation on several devices that had callbacks?"""
    global _client_alone, _is_left_to_jax
    if not _are_tokens_possible:
        return False
    client = next(iter(sharding.device_set)).client
    if client is _client_alone:
        return False
    if len(client.local_devices()) == 1:
        _client_alone = client
        return False
    _is_left_to_jax = True
    return True


if private.HAVE_SCALAR_READS and not private.backends_are_initialized():
    watch_tokens()


# --- Reading -------------------------------------------------------------------------------------

cdef object _element_of(object array, object dtype):
    """A numpy scalar, or None where the array cannot be read."""
    cdef Py_buffer view
    try:
        _wait(array)    # as the reference waits: a signal is handled meanwhile
        PyObject_GetBuffer(array, &view, PyBUF_FORMAT | PyBUF_ND)
    except Exception as error:
        if is_of_program(error):    # a handler of a signal
            raise
        return None
    try:
        return jm_scalar(view.buf, dtype)
    finally:
        PyBuffer_Release(&view)


cdef int _lookups = 0    # of the client of an array whose data were not found
cdef int _in_vain = 0    # reads in a row of such arrays
cdef int _left = 0       # reads that are not looked at


def _forget() -> None:
    """Know nothing of clients that JAX may let go of."""
    global _client_alone, _in_vain, _is_left_to_jax, _left, _lookups
    _client_alone, _is_left_to_jax = None, False
    _in_vain = _left = _lookups = 0


on_forget(_forget)


cdef bint _are_data_found(object array, object sharding) except -1:
    """Are its data where jaxlib's own clients have them?"""
    global _lookups
    if has_data_of_jaxlib(array):
        return True
    if _lookups == MOST_LOOKUPS:
        return False
    _lookups += 1
    words_of(sharding)    # looks for them with samples, the first time
    return has_data_of_jaxlib(array)


cdef bint _is_readable(object array) except -1:
    """Is it on one device, with data that are found, and nothing else?"""
    global _in_vain, _left
    sharding = array_sharding(array)
    if type(sharding) is not _single_type:
        return False
    if not _are_data_found(array, sharding):
        _in_vain = min(_in_vain + 1, MOST_IN_VAIN)
        _left = LEFT_THEN if _in_vain == MOST_IN_VAIN else 0
        return False
    _in_vain = 0
    return not _may_have_an_outcome(sharding)


cdef inline bint _is_left() noexcept:
    """Is this read JAX's, unseen?"""
    global _left
    if not _left:
        return _is_left_to_jax
    if not is_asked():
        _left -= 1
    return True


cdef object _read(object array, bint integer):
    """The element of an array that is nothing but its data; None for others."""
    cdef int number
    if (
        _is_left()
        or jm_kind_of_type(&types, Py_TYPE(<PyObject*>array)) != JM_ARRAY
        or not words_are_vouched_for() or array_buffer(array) == NULL or array_aval(array).shape
        or not _is_readable(array)
    ):
        return None
    dtype = array_dtype(array)
    if not cnp.PyArray_DescrCheck(dtype):
        return None
    number = (<cnp.dtype>dtype).type_num
    # Of complex numbers numpy warns, and says where.
    if not (
        cnp.PyTypeNum_ISINTEGER(number)
        or not integer and (cnp.PyTypeNum_ISBOOL(number) or cnp.PyTypeNum_ISFLOAT(number))
    ):
        return None
    if not is_untouched(placement_rules) or is_profiling():
        return None
    return _element_of(array, dtype)


cdef class _Reader:
    """How one of the methods converts the element."""
    cdef int entry, named
    cdef object convert    # of a numpy scalar, and the method's second argument if it has one
    cdef Py_ssize_t count  # of arguments
    cdef bint integer      # is it for integers alone?


cdef PyObject* _convert(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    cdef _Reader reader = <_Reader>(<Method>method).inner
    cdef object element = None
    if PyVectorcall_NARGS(nargsf) == reader.count and names == NULL:
        element = _read(<object>args[0], reader.integer)
    if element is None:
        return PyObject_Vectorcall(<PyObject*>(<Method>method).reference, args, nargsf, names)
    decided_to_hit(reader.entry)
    count_hit_of(reader.entry, &entries[reader.named])
    if reader.count == 1:
        result = reader.convert(element)
    else:
        result = reader.convert(element, <object>args[1])
    Py_INCREF(result)
    return <PyObject*>result


cdef dict _conversions = {
    "__bool__": bool, "__float__": float, "__int__": int, "__index__": operator.index,
    "__format__": format,
}

CONVERSIONS = tuple(_conversions)


def make_reader(str entry, str name, reference, str written):
    """The replacement of a method that converts an array of one element.

    Args:
      entry: the name of the entry point that counts.
      name: that of the method, one of `CONVERSIONS`.
      reference: the method.
      written: how programs write it.
    """
    cdef Method method = make_method(<vectorcallfunc>_convert, reference)
    cdef _Reader reader = _Reader()
    reader.entry, reader.named = entry_number(entry), named_number(entry, written)
    reader.convert = _conversions[name]
    reader.count = 2 if name == "__format__" else 1
    reader.integer = name == "__index__"
    method.inner = reader
    return method
