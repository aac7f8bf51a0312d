"""Numpy arrays on their way to a device: what jaxlib is handed, and what is kept alive by that.

Where memory is shared, the result of a put keeps what jaxlib was handed. JAX hands over a view of
a view of the argument, and numpy leaves out what is in between.
"""

cimport numpy as cnp
from libc.string cimport memcmp

from jaxmarshal._jax import private

cnp.import_array()

cdef extern from *:
    """
    /* Types that keep the list elsewhere count as watched. */
    static inline int jm_is_watched(PyObject *array) {
        Py_ssize_t offset = Py_TYPE(array)->tp_weaklistoffset;
        return offset <= 0 || *(PyObject **)((char *)array + offset) != NULL;
    }

    static inline PyObject *jm_view(PyObject *array) {
        return PyArray_View((PyArrayObject *)array, NULL, &PyArray_Type);
    }

    static inline PyObject *jm_cast(PyObject *array, PyObject *dtype) {
        Py_INCREF(dtype);
        return PyArray_CastToType((PyArrayObject *)array, (PyArray_Descr *)dtype, 0);
    }

    static PyObject *jm_cut(PyObject *array, PyObject *owner, const Py_ssize_t *starts,
                            const Py_ssize_t *lengths) {
        PyArrayObject *whole = (PyArrayObject *)array;
        PyArray_Descr *dtype = PyArray_DESCR(whole);
        char *data = PyArray_BYTES(whole);
        PyObject *part;
        for (int i = 0; i < PyArray_NDIM(whole); i++) data += starts[i] * PyArray_STRIDE(whole, i);
        Py_INCREF(dtype);
        part = PyArray_NewFromDescr(&PyArray_Type, dtype, PyArray_NDIM(whole),
                                    (npy_intp const *)lengths, PyArray_STRIDES(whole), data, 0,
                                    NULL);
        if (part == NULL) return NULL;
        Py_INCREF(owner);
        if (PyArray_SetBaseObject((PyArrayObject *)part, owner) < 0) Py_CLEAR(part);
        return part;
    }

    #define jm_is_plain_array(array) PyArray_CheckExact(array)
    #define jm_base(array) ((void *)PyArray_BASE((PyArrayObject *)(array)))
    #define jm_is_native(array) PyArray_ISNOTSWAPPED((PyArrayObject *)(array))
    """
    bint jm_is_watched(object array) noexcept
    object jm_view(object array)
    object jm_cast(object array, object dtype)
    object jm_cut(object array, object owner, const Py_ssize_t* starts, const Py_ssize_t* lengths)
    bint jm_is_plain_array(object array) noexcept
    void* jm_base(object array) noexcept
    bint jm_is_native(object array) noexcept

cdef object _canonicalize = private.canonicalize_value
cdef object _literal_type = private.TypedNdArray
cdef bint hands_on_views = (
    isinstance(_literal_type, type) and issubclass(_literal_type, cnp.ndarray)
)
cdef object _collect_garbage = private.collect_garbage


cdef bint is_watched(object array) noexcept:
    return jm_is_watched(array)


cdef int let_go_of(object array) except -1:
    if _collect_garbage is not None and jm_is_watched(array):
        _collect_garbage()
    return 0


cdef object canonical_array(
    object array, int typenum, Py_ssize_t ndim, const Py_ssize_t* dims
):
    found = _canonicalize(array)
    if not cnp.PyArray_Check(found) and type(found) is _literal_type:
        found = found.val    # before JAX 0.9 it holds an array, and is none
    if (
        not cnp.PyArray_Check(found) or cnp.PyArray_TYPE(found) != typenum
        or not jm_is_native(found) or cnp.PyArray_NDIM(found) != ndim
        or (ndim and memcmp(cnp.PyArray_DIMS(found), dims, ndim * sizeof(Py_ssize_t)) != 0)
    ):
        return None
    return found


cdef object cast_array(object array, object dtype):
    return jm_cast(array, dtype)


cdef object view_of_base(object array):
    if not hands_on_views or not jm_is_plain_array(array) or jm_base(array) == NULL:
        return array
    return jm_view(array)


cdef object cut_array(
    object array, object owner, const Py_ssize_t* starts, const Py_ssize_t* lengths
):
    return jm_cut(array, owner, starts, lengths)
