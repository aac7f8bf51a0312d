"""Looking up operations by what their parameters are worth."""

from cpython.float cimport PyFloat_AS_DOUBLE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport (
    PyObject, PyObject_Hash, PyObject_RichCompareBool, PyTypeObject, Py_EQ
)
from cpython.ref cimport Py_DECREF, Py_INCREF

from jaxmarshal._core.replay.plays cimport came_before
from jaxmarshal._core.values.capi cimport (
    PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyUnicode_CHECK_INTERNED, PyUnicode_CheckExact,
    jm_tuple_items
)
from jaxmarshal._core.values.kinds cimport (
    Py_TYPE, jm_kind_of_type, jm_type_table, jm_type_table_set
)
from jaxmarshal._core.values.narrowing cimport bits_of

from jaxmarshal._jax import private

cdef enum:
    MOST_OPERATIONS = 4096    # as many as the reference keeps
    FEW_OPERATIONS = 256      # that are kept when they come for the first time
    MOST_REFUSED = 65536      # then what is known was for another part of the program
    DEEPEST = 8               # tuples in tuples

# What a plain value is.
cdef enum:
    NO_VALUE = 0
    SINGLETON     # None, a bool, a member of an enumeration: there is one object of each value
    EXACT         # an int, a text or bytes: hashed and compared by Python's own code
    FLOAT         # by its bits
    TUPLE
    DTYPE         # the one object that numpy has for it; anything else of its type has more to it

cdef jm_type_table _types     # exact type to kind
cdef jm_type_table _dtypes    # the dtypes that JAX itself has, by their addresses


def _fill() -> None:
    for cls, kind in (
        (type(None), SINGLETON), (bool, SINGLETON), (int, EXACT), (str, EXACT), (bytes, EXACT),
        (float, FLOAT), (tuple, TUPLE),
    ):
        jm_type_table_set(&_types, <PyTypeObject*>cls, kind)
    for cls in private.value_enums:
        jm_type_table_set(&_types, <PyTypeObject*>cls, SINGLETON)
    for cls in private.value_tuples:
        jm_type_table_set(&_types, <PyTypeObject*>cls, TUPLE)
    for dtype in private.jax_dtypes or ():
        jm_type_table_set(&_types, Py_TYPE(<PyObject*>dtype), DTYPE)
        jm_type_table_set(&_dtypes, <PyTypeObject*>dtype, DTYPE)


_fill()


# --- Values --------------------------------------------------------------------------------------

cdef inline size_t _mixed(size_t h, size_t more) noexcept nogil:
    h = (h ^ more) * <size_t>0x9E3779B97F4A7C15
    return h ^ (h >> 29)


cdef inline Py_hash_t _hash_of(PyObject* value) noexcept:
    return PyObject_Hash(<object>value)


cdef bint _mix_value(PyObject* value, size_t* h, int depth) noexcept:
    """Mix a value into a hash. False where it is no plain value."""
    cdef Py_ssize_t i
    cdef PyTypeObject* cls = Py_TYPE(value)
    cdef int kind = jm_kind_of_type(&_types, cls)
    if kind == SINGLETON:
        h[0] = _mixed(h[0], <size_t>value)
    elif kind == EXACT:
        h[0] = _mixed(h[0] ^ <size_t>cls, <size_t>_hash_of(value))
    elif kind == TUPLE and depth < DEEPEST:
        h[0] = _mixed(h[0] ^ <size_t>cls, PyTuple_GET_SIZE(value))
        for i in range(PyTuple_GET_SIZE(value)):
            if not _mix_value(PyTuple_GET_ITEM(value, i), h, depth + 1):
                return False
    elif kind == DTYPE and jm_kind_of_type(&_dtypes, <PyTypeObject*>value):
        h[0] = _mixed(h[0], <size_t>value)
    elif kind == FLOAT:
        h[0] = _mixed(h[0] ^ <size_t>cls, bits_of(PyFloat_AS_DOUBLE(<object>value)))
    else:
        return False
    return True


cdef bint _same_value(PyObject* a, PyObject* b) noexcept:
    """Are two plain values the same? They are of no depth that was not looked at before."""
    cdef Py_ssize_t i
    cdef int kind
    if a == b:
        return True
    if Py_TYPE(a) != Py_TYPE(b):
        return False
    kind = jm_kind_of_type(&_types, Py_TYPE(a))
    if kind == EXACT:
        return PyObject_RichCompareBool(<object>a, <object>b, Py_EQ)
    if kind == FLOAT:
        return bits_of(PyFloat_AS_DOUBLE(<object>a)) == bits_of(PyFloat_AS_DOUBLE(<object>b))
    if kind != TUPLE or PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b):
        return False
    for i in range(PyTuple_GET_SIZE(a)):
        if not _same_value(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i)):
            return False
    return True


# --- Operations ----------------------------------------------------------------------------------

cdef size_t hash_operation(PyObject* prim, PyObject* names, PyObject** values) noexcept:
    cdef size_t h = _mixed(0, <size_t>prim)
    cdef Py_ssize_t i
    cdef PyObject* name
    if names != NULL:
        for i in range(PyTuple_GET_SIZE(names)):
            name = PyTuple_GET_ITEM(names, i)
            if not PyUnicode_CheckExact(name) or not PyUnicode_CHECK_INTERNED(name):
                return 0
            h = _mixed(h, <size_t>name)
            if not _mix_value(values[i], &h, 0):
                return 0
    return h | 1


cdef bint _is_it(
    Operation operation, PyObject* prim, PyObject* names, PyObject** values
) noexcept:
    cdef Py_ssize_t i, n = 0 if names == NULL else PyTuple_GET_SIZE(names)
    if <PyObject*>operation.prim != prim or len(operation.names) != n:
        return False
    for i in range(n):
        if PyTuple_GET_ITEM(<PyObject*>operation.names, i) != PyTuple_GET_ITEM(names, i):
            return False
        if not _same_value(PyTuple_GET_ITEM(<PyObject*>operation.values, i), values[i]):
            return False
    return True


cdef class Operations:
    def __dealloc__(self):
        _drop_all(self)


cdef void _drop_all(Operations operations) noexcept:
    cdef size_t i, size = operations.size
    cdef PyObject** slots = operations.slots
    operations.slots = NULL
    operations.size = 0
    operations.count = 0
    for i in range(size):
        if slots[i] != NULL:
            Py_DECREF(<object>slots[i])
    PyMem_Free(slots)


cdef PyObject* find_operation(
    Operations operations, size_t hashed, PyObject* prim, PyObject* names, PyObject** values
) noexcept:
    cdef size_t i
    cdef PyObject* found
    if operations.size == 0:
        return NULL
    i = hashed & (operations.size - 1)
    while operations.slots[i] != NULL:
        found = operations.slots[i]
        if (<Operation>found).hashed == hashed and _is_it(<Operation>found, prim, names, values):
            return found
        i = (i + 1) & (operations.size - 1)
    return NULL


cdef int _put(Operations operations, PyObject* operation) noexcept:
    cdef size_t i = (<Operation>operation).hashed & (operations.size - 1)
    while operations.slots[i] != NULL:
        i = (i + 1) & (operations.size - 1)
    operations.slots[i] = operation
    operations.count += 1
    return 0


cdef int _grow(Operations operations) except -1:
    cdef size_t i, before = operations.size
    cdef size_t size = 2 * before if before else 32
    cdef PyObject** old = operations.slots
    cdef PyObject** slots = <PyObject**>PyMem_Calloc(size, sizeof(PyObject*))
    if slots == NULL:
        raise MemoryError()
    operations.slots = slots
    operations.size = size
    operations.count = 0
    for i in range(before):
        if old[i] != NULL:
            _put(operations, old[i])
    PyMem_Free(old)
    return 0


cdef bint is_operation_wanted(Operations operations, size_t hashed) noexcept:
    if operations.count < FEW_OPERATIONS:
        return True
    if not came_before(hashed ^ <size_t><PyObject*>operations):
        return False
    if operations.count < MOST_OPERATIONS or operations.refused >= MOST_REFUSED:
        return True
    operations.refused += 1
    return False


cdef int keep_operation(Operations operations, Operation operation) except -1:
    cdef size_t i
    cdef PyObject* found = find_operation(
        operations, operation.hashed, <PyObject*>operation.prim, <PyObject*>operation.names,
        jm_tuple_items(operation.values),
    )
    if found != NULL:    # what was known of it no longer holds
        i = operation.hashed & (operations.size - 1)
        while operations.slots[i] != found:
            i = (i + 1) & (operations.size - 1)
        Py_INCREF(operation)
        operations.slots[i] = <PyObject*>operation
        Py_DECREF(<object>found)
        return 0
    if operations.count >= MOST_OPERATIONS:
        _drop_all(operations)
        operations.refused = 0
    if <size_t>(2 * operations.count) >= operations.size:
        _grow(operations)
    Py_INCREF(operation)
    _put(operations, <PyObject*>operation)
    return 0
