"""Where the words of an ArrayImpl are, and readers that fall back to the public attributes.

Every reader needs the GIL, takes an object whose exact type is ArrayImpl and which the caller keeps
alive, and calibrates at its first use. Readers return new references; NULL never escapes.
"""

from cpython.object cimport PyObject

cdef extern from "jaxmarshal/layout.h":
    ctypedef struct jm_array_layout:
        int calibrated
        Py_ssize_t aval
        Py_ssize_t dtype
        Py_ssize_t sharding
        Py_ssize_t committed
        Py_ssize_t buffer
        size_t vtable
        int layout_count
        Py_ssize_t layout_words[8]
    void* jm_word(const void* base, Py_ssize_t offset) noexcept nogil
    int jm_byte(const void* base, Py_ssize_t offset) noexcept nogil
    int jm_buffer_layout_is_default(
        const jm_array_layout* layout, const void* buffer
    ) noexcept nogil

# The one record of offsets; written by `calibrate` only.
cdef jm_array_layout layout

# Find the offsets. Leaves -1 where a word cannot be confirmed; raises nothing but KeyboardInterrupt
# and SystemExit. Makes and drops a few arrays on local devices.
cdef int calibrate() except -1

# Slow readers, through the public attributes.
cdef object aval_attribute(object array)
cdef object dtype_attribute(object array)
cdef object sharding_attribute(object array)
cdef bint committed_attribute(object array) except -1
cdef void* buffer_attribute(object array) except? NULL
cdef bint data_layout_attribute(object array) except -1

cdef inline object array_aval(object array):
    if not layout.calibrated:
        calibrate()
    if layout.aval >= 0:
        return <object>jm_word(<void*>array, layout.aval)
    return aval_attribute(array)

cdef inline object array_dtype(object array):
    if not layout.calibrated:
        calibrate()
    if layout.dtype >= 0:
        return <object>jm_word(<void*>array, layout.dtype)
    return dtype_attribute(array)

cdef inline object array_sharding(object array):
    if not layout.calibrated:
        calibrate()
    if layout.sharding >= 0:
        return <object>jm_word(<void*>array, layout.sharding)
    return sharding_attribute(array)

cdef inline bint array_committed(object array) except -1:
    if not layout.calibrated:
        calibrate()
    if layout.committed >= 0:
        return jm_byte(<void*>array, layout.committed) != 0
    return committed_attribute(array)

# The runtime buffer, or NULL once it is deleted; a donated array keeps its pointer. Where the word
# is not known, a pointer only good for a comparison with NULL. `except?`: NULL with an error
# set means that reading failed.
cdef inline void* array_buffer(object array) except? NULL:
    if not layout.calibrated:
        calibrate()
    if layout.buffer >= 0:
        return jm_word(<void*>array, layout.buffer)
    return buffer_attribute(array)

# Does the array, whose buffer was read as `buffer`, hold its data in the default layout?
cdef inline bint array_layout_is_default(object array, void* buffer) except -1:
    if layout.buffer >= 0 and buffer != NULL and jm_buffer_layout_is_default(&layout, buffer):
        return True
    return data_layout_attribute(array)
