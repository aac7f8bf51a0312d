"""Numbers for what arguments are; see the declarations."""

from cpython.dict cimport PyDict_Size
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject, PyObject_Hash
from cpython.tuple cimport PyTuple_GET_SIZE
cimport numpy as cnp

from jaxmarshal._core.values.array_words cimport array_aval
from jaxmarshal._core.values.capi cimport (
    PyDict_Next, PyTuple_CheckExact, jm_list_items, jm_tuple_items
)
from jaxmarshal._core.values.kinds cimport (
    JM_ARRAY, JM_DICT, JM_LIST, JM_NDARRAY, JM_TUPLE, Py_TYPE, classify, jm_kind_is_host
)

cnp.import_array()

cdef extern from *:
    """
    /* Is the hash of this object that of its value or of its address, and no code of a user's? */
    static inline int jm_hashes_by_itself(PyObject *obj) {
        return PyUnicode_CheckExact(obj) || PyLong_CheckExact(obj) || PyFloat_CheckExact(obj) ||
               PyBool_Check(obj) || PyBytes_CheckExact(obj) || obj == Py_None ||
               Py_TYPE(obj)->tp_hash == PyBaseObject_Type.tp_hash;
    }
    """
    bint jm_hashes_by_itself(PyObject* obj) noexcept

cdef enum:
    DEEPEST = 8    # containers in containers


cdef uint64_t _number_of_shape(object shape) except? 0:
    return <uint64_t>PyObject_Hash(shape)


cdef uint64_t _number_of_array(object array) except? 0:
    aval = array_aval(array)
    dtype = aval.dtype
    return add_number(
        _number_of_shape(aval.shape),
        (<cnp.dtype>dtype).type_num if cnp.PyArray_DescrCheck(dtype) else 0,
    )


cdef uint64_t _number_of_host_data(PyObject* obj, int kind) except? 0:
    """What is on the host fits by its aval once it is placed: by its shape, whatever it is."""
    return _number_of_shape((<object>obj).shape if kind == JM_NDARRAY else ())


cdef uint64_t _number_of_dict(dict mapping, Py_ssize_t leaves, int depth) except? 0:
    """The same in any order of the keys."""
    cdef Py_ssize_t position = 0, n = PyDict_Size(mapping)
    cdef PyObject* key
    cdef PyObject* value
    cdef uint64_t one, number = 0
    if n > leaves:
        return 0
    while PyDict_Next(mapping, &position, &key, &value):
        one = number_of_tree(value, leaves // n, depth)
        if jm_hashes_by_itself(key):
            one = add_number(one, <uint64_t>PyObject_Hash(<object>key))
        number += one
    return number


cdef uint64_t number_of_trees(
    PyObject** items, Py_ssize_t n, Py_ssize_t leaves, int depth=0
) except? 0:
    cdef Py_ssize_t i, each = leaves // n if n else 0
    cdef uint64_t number = <uint64_t>n
    for i in range(n):
        if each:
            number = add_number(number, number_of_tree(items[i], each, depth))
        elif i < leaves // 2 or i >= n - (leaves - leaves // 2):
            number = add_number(number, number_of_tree(items[i], 1, depth))
    return number


cdef uint64_t _number_of_children(
    PyObject* obj, int kind, Py_ssize_t leaves, int depth
) except? 0:
    if depth > DEEPEST:
        return 0
    if kind == JM_LIST:
        return number_of_trees(
            jm_list_items(<object>obj), PyList_GET_SIZE(<object>obj), leaves, depth
        )
    if kind == JM_TUPLE:
        return number_of_trees(
            jm_tuple_items(<object>obj), PyTuple_GET_SIZE(<object>obj), leaves, depth
        )
    return add_number(PyDict_Size(<object>obj), _number_of_dict(<dict>obj, leaves, depth))


cdef uint64_t number_of_tree(PyObject* obj, Py_ssize_t leaves, int depth=0) except? 0:
    cdef int kind = classify(obj)
    if kind == JM_ARRAY:
        return _number_of_array(<object>obj)
    if jm_kind_is_host(kind):
        return _number_of_host_data(obj, kind)
    if kind == JM_LIST or kind == JM_TUPLE or kind == JM_DICT:
        return add_number(kind, _number_of_children(obj, kind, leaves, depth + 1))
    return <uint64_t><size_t>Py_TYPE(obj)


cdef uint64_t number_of_static(PyObject* obj, int depth=0) except? 0:
    cdef uint64_t number = <uint64_t><size_t>Py_TYPE(obj)
    cdef Py_ssize_t i
    if jm_hashes_by_itself(obj):
        return add_number(number, <uint64_t>PyObject_Hash(<object>obj))
    if PyTuple_CheckExact(obj) and depth < DEEPEST:
        for i in range(PyTuple_GET_SIZE(<object>obj)):
            number = add_number(
                number, number_of_static(jm_tuple_items(<object>obj)[i], depth + 1)
            )
    return number
