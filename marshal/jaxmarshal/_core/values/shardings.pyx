"""Equality of shardings, for which JAX has a method in Python where there is one device.

Every executable gives its results a sharding of its own, so that arrays on one device have as many
equal ones as there are functions that made them.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport uint64_t, uintptr_t

from jaxmarshal._core.values.forgetting cimport on_forget

from jaxmarshal._jax import private

cdef enum:
    PLACES = 1024

# A sharding that was seen, and what all equal ones are known by. Both are owned, so that no other
# object can have its address.
ctypedef struct Seen:
    PyObject* sharding
    PyObject* token

cdef Seen _seen[PLACES]
cdef dict _tokens = {}    # a sharding -> its token
cdef object _single_type = private.SingleDeviceSharding


cdef int _set(Seen* place, PyObject* sharding, PyObject* token) except -1:
    """What the place had goes last, for that may run code."""
    cdef Seen before = place[0]
    place.sharding, place.token = sharding, token
    Py_XDECREF(before.sharding)
    Py_XDECREF(before.token)
    return 0


cdef object token_of(object sharding):
    # Addresses of objects that were made together differ in few bits, and not in the last ones.
    cdef uint64_t mixed = <uint64_t><uintptr_t><PyObject*>sharding * (<uint64_t>0x9E3779B97F4A7C15)
    cdef Seen* place = &_seen[(mixed >> 32) % PLACES]
    if place.sharding == <PyObject*>sharding:
        return <object>place.token
    if type(sharding) is not _single_type:
        return sharding
    token = _tokens.setdefault(sharding, object())
    Py_INCREF(sharding)
    Py_INCREF(token)
    _set(place, <PyObject*>sharding, <PyObject*>token)
    return token


cdef bint same_sharding(object a, object b) except -1:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if type(a) is _single_type:
        return token_of(a) is token_of(b)
    return a == b


def _forget() -> None:
    global _tokens
    _tokens = {}    # first: what is noted from now on has its own
    for i in range(PLACES):
        _set(&_seen[i], NULL, NULL)


on_forget(_forget)
