"""Numpy arrays on their way to a device: what jaxlib is handed, and what is kept alive by that.

Where memory is shared, the result of a put keeps what jaxlib was handed. JAX hands over a view of
a view of the argument, and numpy leaves out what is in between.
"""

cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport uintptr_t
from libc.string cimport memcmp

from jaxmarshal._core.values.array_words cimport is_gone
from jaxmarshal._core.values.errors cimport propagate
from jaxmarshal._core.values.forgetting cimport on_forget
from jaxmarshal._core.values.methods cimport vectorcallfunc

import numpy as np

from jaxmarshal._jax import private

cnp.import_array()

cdef extern from *:
    vectorcallfunc PyVectorcall_Function(PyObject* function) noexcept

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

    static inline int jm_copy(PyObject *from, PyObject *to) {
        PyArrayObject *source = (PyArrayObject *)from, *target = (PyArrayObject *)to;
        if (PyArray_DESCR(source) != PyArray_DESCR(target) || !PyArray_IS_C_CONTIGUOUS(source)
            || PyArray_NBYTES(source) != PyArray_NBYTES(target))
            return PyArray_CopyInto(target, source);
        memcpy(PyArray_DATA(target), PyArray_DATA(source), PyArray_NBYTES(target));
        return 0;
    }

    #define jm_is_plain_array(array) PyArray_CheckExact(array)
    #define jm_base(array) ((void *)PyArray_BASE((PyArrayObject *)(array)))
    #define jm_is_native(array) PyArray_ISNOTSWAPPED((PyArrayObject *)(array))
    """
    bint jm_is_watched(object array) noexcept
    object jm_view(object array)
    object jm_cast(object array, object dtype)
    object jm_cut(object array, object owner, const Py_ssize_t* starts, const Py_ssize_t* lengths)
    int jm_copy(object source, object target) except -1
    bint jm_is_plain_array(object array) noexcept
    void* jm_base(object array) noexcept
    bint jm_is_native(object array) noexcept

cdef enum:
    ALIGNMENT = 64    # bytes; XLA's own for a CPU

cdef object _canonicalize = private.canonicalize_value
cdef object _literal_type = private.TypedNdArray
cdef bint hands_on_views = (
    isinstance(_literal_type, type) and issubclass(_literal_type, cnp.ndarray)
)
cdef object _collect_garbage = private.collect_garbage
cdef object _is_ready = private.is_ready
cdef object _data_pointer = private.data_pointer
# By this it is called while reads of arrays are watched, too: this one is not the program's.
cdef vectorcallfunc _ask_pointer = (
    PyVectorcall_Function(<PyObject*>_data_pointer) if private.HAVE_REUSE else NULL
)


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


cdef object aligned_like(object array):
    cdef Py_ssize_t size = cnp.PyArray_NBYTES(array)
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = (ALIGNMENT - <uintptr_t>cnp.PyArray_DATA(memory) % ALIGNMENT) % ALIGNMENT
    return memory[start:start + size].view(array.dtype).reshape(array.shape)


cdef int copy_array(object source, object target) except -1:
    return jm_copy(source, target)


# --- Arrays whose data are replaced ---------------------------------------------------------------

cdef enum:
    MOST_BUFFERS = 256           # of one key
    MOST_BYTES = 8388608     # of all; then those that nobody has go
    OBJECTS = 1024           # bytes of one that are not its data, about

cdef dict _buffers = {}          # key -> list of the HostBuffers that no call has
cdef Py_ssize_t _bytes = 0       # of all since they were last dropped
cdef object _over = None         # the witness that was last found ready: most have the same
cdef bint _have_shared = False   # has jaxlib shared memory with us?
cdef bint _have_refused = False  # has it not?


cdef inline Py_ssize_t _cost(object memory) noexcept:
    return OBJECTS + cnp.PyArray_NBYTES(memory)


cdef bint are_shared(object array, object memory) except -1:
    global _have_shared, _have_refused
    cdef PyObject* arg = <PyObject*>array
    cdef PyObject* pointer
    _have_refused = True
    pointer = _ask_pointer(<PyObject*>_data_pointer, &arg, 1, NULL)
    if pointer == NULL:
        propagate()
    found = <object>pointer
    Py_DECREF(found)
    if found != <uintptr_t>cnp.PyArray_DATA(memory):
        return False
    _have_shared = True
    return True


cdef bint may_share() noexcept:
    return _have_shared or not _have_refused


cdef HostBuffer make_buffer(object array, object memory):
    global _bytes
    cdef HostBuffer buffer
    if _bytes > MOST_BYTES:
        drop_buffers()
    _bytes += _cost(memory)
    buffer = HostBuffer()
    buffer.array = array
    buffer.memory = memory
    return buffer


cdef bint is_over(object result) except -1:
    return _is_ready(result)


cdef int _state_of(HostBuffer buffer) except -1:
    global _over
    if is_gone(buffer.array):
        return LOST
    if buffer.witness is None or buffer.witness is _over:
        return FREE
    result = buffer.witness()
    if result is None or is_gone(result):
        return LOST
    try:
        if not is_over(result):
            return BUSY
    except Exception:    # it was deleted meanwhile
        return LOST
    _over = buffer.witness
    return FREE


cdef HostBuffer take_buffer(object key, int* state):
    global _bytes
    cdef list known = _buffers.get(key), busy = None
    cdef HostBuffer buffer = None
    state[0] = NONE
    while known:
        buffer = known.pop()    # so that no other thread has it
        state[0] = _state_of(buffer)
        if state[0] == FREE:
            break
        if state[0] == BUSY:
            busy = busy or []
            busy.append(buffer)
        else:
            _bytes -= _cost(buffer.memory)
    if busy:
        known.extend(busy)
        state[0] = min(state[0], <int>BUSY)
    return buffer if state[0] == FREE else None


cdef int state_of_buffers(object key) except -1:
    cdef int best = NONE
    for buffer in _buffers.get(key, ()):
        best = min(best, _state_of(<HostBuffer>buffer))
    return best


cdef int give_buffer(object key, HostBuffer buffer) except -1:
    cdef list known = _buffers.setdefault(key, [])
    if len(known) < MOST_BUFFERS:
        known.append(buffer)
    return 0


def drop_buffers() -> None:
    """Let go of all that no call has."""
    global _bytes
    _buffers.clear()
    _bytes = 0


on_forget(drop_buffers)


def count_buffers() -> int:
    """How many there are that no call has; for tests."""
    return sum(map(len, _buffers.values()))
