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
    PLACES = 256    # a power of two
    PROBES = 4

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


cdef inline Seen* _place_of(PyObject* sharding) noexcept:
    """Where it is; or where it may come, which is where another is if there are many."""
    # Addresses of objects that were made together differ in few bits, and not in the last ones.
    cdef uint64_t mixed = <uint64_t><uintptr_t>sharding * (<uint64_t>0x9E3779B97F4A7C15) >> 32
    cdef Seen* place
    cdef Seen* free = NULL
    cdef int i
    for i in range(PROBES):
        place = &_seen[(mixed + i) % PLACES]
        if place.sharding == sharding:
            return place
        if free == NULL and place.sharding == NULL:
            free = place
    return free if free != NULL else &_seen[mixed % PLACES]


cdef object token_of(object sharding):
    cdef Seen* place
    cdef dict tokens
    if type(sharding) is not _single_type:
        return sharding
    place = _place_of(<PyObject*>sharding)
    if place.sharding == <PyObject*>sharding:
        return <object>place.token
    tokens = _tokens    # held: another thread may let go of it while Python compares
    token = tokens.setdefault(sharding, object())
    if tokens is not _tokens:
        return token    # those that are noted now have others
    place = _place_of(<PyObject*>sharding)    # once more: that ran Python
    Py_INCREF(sharding)
    Py_INCREF(token)
    _set(place, <PyObject*>sharding, <PyObject*>token)
    return token


cdef bint are_equal(object a, object b) except -1:
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
