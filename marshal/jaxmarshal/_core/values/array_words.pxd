"""Where the words of an ArrayImpl are, and readers that fall back to the public attributes.

Every reader needs the GIL, takes an object whose exact type is ArrayImpl and which the caller keeps
alive, and calibrates at its first use. Readers return new references; NULL never escapes. An array
that `__new__` alone has made holds no objects: its attributes are asked, and raise.

Who would have to ask an attribute for each argument of a call that JAX makes in C++ does not make
that call at all: see `words_are_vouched_for` and `words_of`.
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
        Py_ssize_t held
        size_t held_vtable
        Py_ssize_t wrapped
        size_t wrapped_vtable
        Py_ssize_t data
    size_t JM_HELD_BY_ONE
    size_t JM_HELD_BY(size_t n) noexcept nogil
    void* jm_word(const void* base, Py_ssize_t offset) noexcept nogil
    int jm_byte(const void* base, Py_ssize_t offset) noexcept nogil
    bint jm_words_are_known(const jm_array_layout* layout) noexcept nogil
    int jm_buffer_layout_is_default(
        const jm_array_layout* layout, const void* buffer
    ) noexcept nogil
    bint jm_buffer_is_donated(const jm_array_layout* layout, const void* buffer) noexcept nogil
    const void* jm_buffer_held(const jm_array_layout* layout, const void* buffer) noexcept nogil

# The offsets in the array, which are those of the class and hold for all clients; nothing about
# runtime buffers. Written by `calibrate` only.
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

# Can arrays be compared by their words in this process? Not once it is certain that they cannot:
# the switch is off, or this JAX's words were not found. Then no call is made by way of a plan.
cdef inline bint words_are_vouched_for() noexcept:
    return not layout.calibrated or jm_words_are_known(&layout)

# The words of arrays with this sharding, those of runtime buffers included: they were found with
# samples on the very client that the sharding's devices belong to, now if it is the first such
# array. NULL where they cannot be vouched for. The record is never freed and never changes.
# Runs Python code; raises nothing but KeyboardInterrupt and SystemExit.
cdef const jm_array_layout* words_of(object sharding) except? NULL

cdef inline object array_aval(object array):
    cdef void* word
    if not layout.calibrated:
        calibrate()
    if layout.aval >= 0:
        word = jm_word(<void*>array, layout.aval)
        if word != NULL:
            return <object>word
    return aval_attribute(array)

cdef inline object array_dtype(object array):
    cdef void* word
    if not layout.calibrated:
        calibrate()
    if layout.dtype >= 0:
        word = jm_word(<void*>array, layout.dtype)
        if word != NULL:
            return <object>word
    return dtype_attribute(array)

cdef inline object array_sharding(object array):
    cdef void* word
    if not layout.calibrated:
        calibrate()
    if layout.sharding >= 0:
        word = jm_word(<void*>array, layout.sharding)
        if word != NULL:
            return <object>word
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

# Have the array's data been deleted, or donated? As `is_deleted` says; its words tell it in most
# cases.
cdef bint is_gone(object array) except -1

# Are the array's data there, and those of a client of jaxlib's own, not of a plugin? False where
# its words do not tell it.
cdef bint has_data_of_jaxlib(object array) except -1
