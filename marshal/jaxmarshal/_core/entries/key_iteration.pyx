"""Going through an array of keys, as in `key, subkey = jax.random.split(key)`.

JAX takes the array of bits apart by one jitted function, at the first key that is asked for, and
makes a key of each part in Python. Here these keys are the result of a function that is replayed,
and what hands them out is a generator of Python, as in JAX.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from jaxmarshal._core.entries.public_functions cimport Row, call_row, call_row_function
from jaxmarshal._core.values.array_words cimport array_aval, array_buffer, array_sharding
from jaxmarshal._core.values.kinds cimport JM_ARRAY, JM_KEY_ARRAY, Py_TYPE, jm_kind_of_type, types
from jaxmarshal._core.values.methods cimport (
    Method, PyObject_Vectorcall, PyVectorcall_NARGS, make_method, vectorcallfunc
)
from jaxmarshal._reports.counting cimport is_asked

from jaxmarshal._core.entries.public_functions import make_row
from jaxmarshal._jax import private

cdef enum:
    MOST_KEYS = 100    # that JAX takes out at once

cdef object _single_type = private.SingleDeviceSharding


cdef bint _is_taken_apart_at_once(object keys) except -1:
    """Is it one axis of keys on one device, and no more than JAX takes out at once?"""
    if jm_kind_of_type(&types, Py_TYPE(<PyObject*>keys)) != JM_KEY_ARRAY:
        return False
    bits = keys._base_array
    if (
        jm_kind_of_type(&types, Py_TYPE(<PyObject*>bits)) != JM_ARRAY or array_buffer(bits) == NULL
        or type(array_sharding(bits)) is not _single_type
    ):
        return False
    shape = array_aval(bits).shape
    return len(shape) == 1 + len(keys._impl.key_shape) and 0 < shape[0] <= MOST_KEYS


cdef PyObject* _iterate(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    cdef tuple inner = <tuple>(<Method>method).inner
    if (
        PyVectorcall_NARGS(nargsf) != 1 or names != NULL
        or not _is_taken_apart_at_once(<object>args[0])
    ):
        return PyObject_Vectorcall(<PyObject*>(<Method>method).reference, args, nargsf, names)
    take_apart, hand_out = inner
    if is_asked():
        return (<call_row_function>call_row)(<Row>(<Method>take_apart).inner, args, 1, NULL)
    generator = hand_out(take_apart, <object>args[0])
    Py_INCREF(generator)
    return <PyObject*>generator


def make_iteration(str entry, reference, hand_out, str written):
    """The replacement of the `__iter__` of arrays of keys.

    Args:
      entry: the name of the entry point that counts.
      reference: the method.
      hand_out: a function of Python that makes a generator, of a function that gives all keys of an
        array, and the array. It calls the function when the first key is asked for.
      written: how programs write it.
    """
    cdef Method method = make_method(<vectorcallfunc>_iterate, reference)

    def take_apart(keys):
        return tuple(reference(keys))

    method.inner = (make_row(entry, take_apart, written=written), hand_out)
    return method
