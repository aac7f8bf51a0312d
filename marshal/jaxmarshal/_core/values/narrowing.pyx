"""Conversions of host values that JAX narrows: 64-bit data with x64 off, and Python scalars.

Only conversions that can neither warn nor fail are done here. All others are left to the
reference, whose warnings then name the reference's own lines.
"""

cimport numpy as cnp
from libc.float cimport FLT_MAX, FLT_MIN
from libc.math cimport fabs, isinf, isnan
from libc.stdint cimport INT32_MAX, INT32_MIN, uint64_t
from libc.string cimport memcpy

from jaxmarshal._core.values.kinds cimport JM_BOOL, JM_COMPLEX, JM_FLOAT, JM_INT

cnp.import_array()

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    double PyFloat_AS_DOUBLE(object number) noexcept
    ctypedef struct Py_complex:
        double real
        double imag
    Py_complex PyComplex_AsCComplex(object number) except *

cdef enum:
    LARGEST_SCAN = 16384    # elements; beyond, scanning costs more than the fast path saves

cdef uint64_t QUIET_BIT = 0x0008000000000000


cdef inline bint _is_silent(double x) noexcept nogil:
    """Does (float)x raise no floating-point flag but inexact?"""
    if isnan(x):
        return (bits_of(x) & QUIET_BIT) != 0
    return isinf(x) or x == 0.0 or FLT_MIN <= fabs(x) <= FLT_MAX


cdef inline bint _all_silent(const char* data, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    cdef double x
    for i in range(count):
        memcpy(&x, data + i * sizeof(double), sizeof(x))
        if not _is_silent(x):
            return False
    return True


cdef bint _all_silent_in(
    const char* data, int ndim, const cnp.npy_intp* dims, const cnp.npy_intp* strides,
    Py_ssize_t per_element
) noexcept nogil:
    """The same for elements with gaps between them. numpy's own iterator takes 32 dimensions."""
    cdef cnp.npy_intp i
    if ndim == 0:
        return _all_silent(data, per_element)
    for i in range(dims[0]):
        if not _all_silent_in(data + i * strides[0], ndim - 1, dims + 1, strides + 1, per_element):
            return False
    return True


cdef bint narrows_silently(object array) noexcept:
    cdef int typenum = cnp.PyArray_TYPE(array)
    cdef Py_ssize_t per_element = 2 if typenum == cnp.NPY_COMPLEX128 else 1
    cdef Py_ssize_t size = cnp.PyArray_SIZE(array)
    cdef const char* data = <const char*>cnp.PyArray_DATA(array)
    if size == 0 or (typenum != cnp.NPY_FLOAT64 and typenum != cnp.NPY_COMPLEX128):
        return True    # integers wrap without a word
    if size * per_element > LARGEST_SCAN:
        return False
    if cnp.PyArray_ISONESEGMENT(array):
        return _all_silent(data, size * per_element)
    return _all_silent_in(
        data, cnp.PyArray_NDIM(array), cnp.PyArray_DIMS(array), cnp.PyArray_STRIDES(array),
        per_element,
    )


cdef object scalar_array(object obj, int kind, int typenum):
    cdef cnp.npy_intp no_dims[1]
    cdef int overflow = 0
    cdef long long number
    cdef double real
    cdef Py_complex both
    cdef void* data
    array = cnp.PyArray_EMPTY(0, no_dims, typenum, 0)
    data = cnp.PyArray_DATA(array)
    if kind == JM_BOOL and typenum == cnp.NPY_BOOL:
        (<cnp.npy_bool*>data)[0] = obj is True
    elif kind == JM_INT and typenum == cnp.NPY_INT32:
        number = PyLong_AsLongLongAndOverflow(obj, &overflow)
        if overflow or not INT32_MIN <= number <= INT32_MAX:
            return None
        (<cnp.npy_int32*>data)[0] = <cnp.npy_int32>number
    elif kind == JM_INT and typenum == cnp.NPY_INT64:
        number = PyLong_AsLongLongAndOverflow(obj, &overflow)
        if overflow:
            return None
        (<cnp.npy_int64*>data)[0] = number
    elif kind == JM_FLOAT and typenum == cnp.NPY_FLOAT32:
        real = PyFloat_AS_DOUBLE(obj)
        if not _is_silent(real):
            return None
        (<cnp.npy_float32*>data)[0] = <cnp.npy_float32>real
    elif kind == JM_FLOAT and typenum == cnp.NPY_FLOAT64:
        (<cnp.npy_float64*>data)[0] = PyFloat_AS_DOUBLE(obj)
    elif kind == JM_COMPLEX and typenum == cnp.NPY_COMPLEX64:
        both = PyComplex_AsCComplex(obj)
        if not (_is_silent(both.real) and _is_silent(both.imag)):
            return None
        (<cnp.npy_float32*>data)[0] = <cnp.npy_float32>both.real
        (<cnp.npy_float32*>data)[1] = <cnp.npy_float32>both.imag
    elif kind == JM_COMPLEX and typenum == cnp.NPY_COMPLEX128:
        both = PyComplex_AsCComplex(obj)
        memcpy(data, &both, sizeof(both))
    else:
        return None
    return array
