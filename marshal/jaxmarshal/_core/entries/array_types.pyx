"""The type of an array, `jax.typeof`: its aval as an operation takes it.

JAX asks for it again and again while it traces and derives, for each argument of each primitive,
and looks it up in Python by the array's aval and sharding. It is the same for the same two objects
where there is one device; for a mesh it depends on the configuration, and is left to JAX.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport uint64_t, uintptr_t

from jaxmarshal._core.context.bypassed cimport bind_rules, is_untouched
from jaxmarshal._core.context.bypassed import put_in_place_of
from jaxmarshal._core.values.array_words cimport (
    array_aval, array_buffer, array_sharding, layout, words_are_vouched_for
)
from jaxmarshal._core.values.forgetting cimport on_forget
from jaxmarshal._core.values.methods cimport (
    PyObject_Vectorcall, PyVectorcall_NARGS, make_method, vectorcallfunc
)

from jaxmarshal._jax import private

cdef enum:
    PLACES = 1024

# What the reference said of arrays that have this aval and this sharding. All three are owned, so
# that no other object can have their addresses.
ctypedef struct Known:
    PyObject* aval
    PyObject* sharding
    PyObject* found

cdef Known _known[PLACES]
cdef object _reference = private.type_of_array
cdef object _array_type = private.ArrayImpl
cdef object _single_type = private.SingleDeviceSharding


cdef inline Known* _place_of(PyObject* aval, PyObject* sharding) noexcept:
    cdef uint64_t mixed = <uint64_t>(<uintptr_t>aval ^ <uintptr_t>sharding << 1)
    return &_known[(mixed * (<uint64_t>0x9E3779B97F4A7C15) >> 32) % PLACES]


cdef int _set(Known* place, PyObject* aval, PyObject* sharding, PyObject* found) except -1:
    """What the place had goes last, for that may run code."""
    cdef Known before = place[0]
    place.aval, place.sharding, place.found = aval, sharding, found
    Py_XDECREF(before.aval)
    Py_XDECREF(before.sharding)
    Py_XDECREF(before.found)
    return 0


cdef bint _is_on_one_device(object x) except -1:
    """Is it an array whose words are those of one device? Neither a deleted nor an empty one is.

    Where there are no words to read, asking for attributes takes longer than JAX's own look-up.
    """
    return (
        (not layout.calibrated or layout.sharding >= 0)
        and type(x) is _array_type and words_are_vouched_for() and array_buffer(x) != NULL
        and type(array_sharding(x)) is _single_type
    )


cdef PyObject* _type_of_array(
    PyObject* method, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    cdef Known* place
    cdef PyObject* found
    cdef object aval, sharding
    if (
        PyVectorcall_NARGS(nargsf) != 1 or names != NULL or not is_untouched(bind_rules)
        or not _is_on_one_device(<object>args[0])
    ):
        return PyObject_Vectorcall(<PyObject*>_reference, args, nargsf, names)
    aval, sharding = array_aval(<object>args[0]), array_sharding(<object>args[0])
    place = _place_of(<PyObject*>aval, <PyObject*>sharding)
    if place.aval == <PyObject*>aval and place.sharding == <PyObject*>sharding:
        found = place.found
        Py_INCREF(<object>found)
        return found
    found = PyObject_Vectorcall(<PyObject*>_reference, args, nargsf, names)
    if found != NULL:
        Py_INCREF(aval)
        Py_INCREF(sharding)
        Py_INCREF(<object>found)
        _set(place, <PyObject*>aval, <PyObject*>sharding, found)
    return found


type_of_array = make_method(<vectorcallfunc>_type_of_array, _reference)
put_in_place_of(_reference, type_of_array)


def use_installed(bint is_installed) -> None:
    """Have JAX ask here for the types of arrays, or as it came. Somebody else's function stays."""
    table = private.aval_mappings
    if _reference is None or not isinstance(table, dict):
        return
    is_installed = is_installed and words_are_vouched_for()    # without, it would only cost
    old, new = (_reference, type_of_array) if is_installed else (type_of_array, _reference)
    if table.get(_array_type) is old:
        table[_array_type] = new


def _forget() -> None:
    for i in range(PLACES):
        _set(&_known[i], NULL, NULL, NULL)


on_forget(_forget)
