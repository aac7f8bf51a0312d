"""Comparing static values."""

from cpython.object cimport Py_EQ, PyObject, PyObject_Hash

from jaxmarshal._core.values.capi cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from jaxmarshal._core.values.kinds cimport Py_TYPE

from jaxmarshal._jax import private

cdef extern from *:
    """
    /* Is equality of this object its identity, so that nothing has to be asked? */
    static inline int jm_is_its_identity(PyObject *obj) {
        return Py_TYPE(obj)->tp_hash == PyBaseObject_Type.tp_hash &&
               Py_TYPE(obj)->tp_richcompare == PyBaseObject_Type.tp_richcompare;
    }
    /* Is it of a type whose objects never change, nor compare by anything but their value? */
    static inline int jm_is_plain_value(PyObject *obj) {
        return PyUnicode_CheckExact(obj) || PyLong_CheckExact(obj) || PyBool_Check(obj) ||
               PyBytes_CheckExact(obj) || obj == Py_None;
    }
    /* The same for an item of a container, which may be unequal to itself. */
    static inline int jm_is_plain_item(PyObject *obj) {
        return jm_is_plain_value(obj) || PyFloat_CheckExact(obj) || PyComplex_CheckExact(obj) ||
               obj == Py_Ellipsis;
    }
    """
    bint jm_is_its_identity(PyObject* obj) noexcept
    bint jm_is_plain_value(PyObject* obj) noexcept
    bint jm_is_plain_item(PyObject* obj) noexcept
    bint PyCFunction_CheckExact(PyObject* obj) noexcept
    object PyObject_RichCompare(object a, object b, int op)
    bint PyObject_IsTrue(object obj) except -1
    bint PyObject_RichCompareBool(object a, object b, int op) except -1

cdef enum:
    DIFFERENT = 0
    SAME = 1
    ASK = 2        # only hash and equality can tell
    DEEPEST = 16   # tuples in tuples

cdef object _treedef_type = private.PyTreeDef


cdef class StaticArgument:
    pass


cdef StaticArgument make_static(Py_ssize_t number, str name, object value):
    cdef StaticArgument static = StaticArgument()
    static.number = number
    static.name = name
    static.value = value
    static.hash = PyObject_Hash(value)
    static.hashed = True
    return static


cdef StaticArgument make_static_part(object value, bint hashed, bint inside=True):
    cdef StaticArgument static = StaticArgument()
    static.number = -1
    static.value = value
    static.inside = inside
    static.hashed = hashed
    if hashed:
        static.hash = PyObject_Hash(value)
    return static


cdef int _compare_tuples(PyObject* value, PyObject* found, int depth) except -1:
    cdef Py_ssize_t i, n = PyTuple_GET_SIZE(value)
    cdef int same, result = SAME
    if n != PyTuple_GET_SIZE(found):
        return DIFFERENT
    if depth > DEEPEST:
        return ASK
    for i in range(n):
        same = _compare(PyTuple_GET_ITEM(value, i), PyTuple_GET_ITEM(found, i), True, depth + 1)
        if same == DIFFERENT:
            return DIFFERENT
        if same == ASK:
            result = ASK
    return result


cdef int _compare(PyObject* value, PyObject* found, bint inside, int depth=0) except -1:
    """What can be told without users' code.

    An object whose class says what equality is may have changed since: it is always asked. The
    reference does not hash what the nodes of a treedef hold, so one treedef is equal to itself.
    """
    if Py_TYPE(found) != Py_TYPE(value):
        if inside and jm_is_plain_item(found) and jm_is_plain_item(value):
            return PyObject_RichCompareBool(<object>value, <object>found, Py_EQ)
        return ASK if depth else DIFFERENT
    if jm_is_its_identity(found):
        return found == value
    if jm_is_plain_value(found) or (inside and jm_is_plain_item(found)):
        return PyObject_RichCompareBool(<object>value, <object>found, Py_EQ)
    if PyTuple_CheckExact(found):
        return _compare_tuples(value, found, depth)
    if found == value and (
        PyCFunction_CheckExact(found) or <PyObject*>Py_TYPE(found) == <PyObject*>_treedef_type
    ):
        return SAME
    return ASK


cdef Py_hash_t _hash(PyObject* found, Asked* asked) except? -1:
    """The hash of a static value, which is asked once a call."""
    if asked.hashes == NULL:
        return PyObject_Hash(<object>found)
    hashes = <dict>asked.hashes
    key = <size_t>found
    if key not in hashes:
        hashes[key] = PyObject_Hash(<object>found)
    return hashes[key]


cdef int same_unasked(StaticArgument known, PyObject* found) except -1:
    cdef int same = _compare(<PyObject*>known.value, found, known.inside)
    return MAYBE if same == ASK else <int>(same == SAME)


cdef bint _is_equal(StaticArgument known, PyObject* found, Asked* asked) except -1:
    """The same by the user's code."""
    if known.hashed and _hash(found, asked) != known.hash:
        return False
    if found == <PyObject*>known.value:
        return True
    return PyObject_IsTrue(PyObject_RichCompare(known.value, <object>found, Py_EQ))


cdef bint same_static(StaticArgument known, PyObject* found, Asked* asked) except -1:
    cdef int same = same_unasked(known, found)
    if same != MAYBE:
        return same == 1
    asked.ran = asked.comparing = True
    same = _is_equal(known, found, asked)
    asked.comparing = False
    return same


cdef bint asks_user_code(StaticArgument known) except -1:
    cdef PyObject* value = <PyObject*>known.value
    return _compare(value, value, known.inside) == ASK
