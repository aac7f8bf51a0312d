"""Calibration of the object layout: which word of an `ArrayImpl` is what.

jaxlib keeps an array's aval, dtype, sharding, committed flag and runtime buffer inside the Python
object, at offsets that differ between versions. Here a few arrays are made whose words are known
through public attributes; an offset is accepted only when it is the single one that fits all of
them. Where none can be confirmed the readers use the public attribute: slower, same answers.

`JAXMARSHAL_OBJECT_LAYOUT=off` in the environment skips the search.
"""

import itertools
import os

import numpy as np

from cpython.object cimport PyObject, PyTypeObject

from jaxmarshal import _reference

cdef extern from "jaxmarshal/compat.h":
    size_t jm_allocation_size(void* p) noexcept nogil
    int JM_HAVE_ALLOCATION_SIZE

cdef enum:
    WORD = sizeof(void*)
    SMALLEST_BUFFER = 64    # bytes; a runtime buffer is larger than this and smaller than that
    LARGEST_BUFFER = 8192
    MAX_LAYOUT_WORDS = 8

cdef list _notes = []


cdef object aval_attribute(object array):
    return array.aval


cdef object dtype_attribute(object array):
    return array.dtype


cdef object sharding_attribute(object array):
    return array.sharding


cdef bint committed_attribute(object array) except -1:
    return array.committed


cdef void* buffer_attribute(object array) except? NULL:
    return NULL if array.is_deleted() else <void*>array


cdef bint data_layout_attribute(object array) except -1:
    """Compare the array's layout with the one its device would give to such data."""
    try:
        found = array._pjrt_layout
        if found is None:
            return True
        sharding = array.sharding
        device = next(iter(sharding.device_set))
        default = device.client.get_default_layout(
            array.dtype, sharding.shard_shape(array.shape), device
        )
    except Exception:
        return False
    return str(found) == str(default)


cdef void _forget() noexcept:
    layout.aval = layout.dtype = layout.sharding = layout.committed = layout.buffer = -1
    layout.vtable = 0
    layout.layout_count = 0


cdef class _AllowTransfers:
    """Lift this thread's transfer guards while calibration makes its own small arrays."""

    cdef object state
    cdef tuple before

    def __enter__(self):
        self.state = _reference.guard_thread_state()
        self.before = (self.state.host_to_device, self.state.device_to_device)
        allow = _reference.TransferGuardLevel.ALLOW
        self.state.host_to_device = self.state.device_to_device = allow
        return self

    def __exit__(self, *exc_info):
        self.state.host_to_device, self.state.device_to_device = self.before


def _make(shape, dtype, device, committed, weak_type=False, data=None):
    """A one-device array with an aval and a sharding of its own."""
    aval = _reference.ShapedArray(shape, np.dtype(dtype), weak_type=weak_type)
    sharding = _reference.SingleDeviceSharding(device)
    if data is None:
        data = np.zeros(shape, dtype)
    return _reference.batched_device_put(aval, sharding, [data], [device], committed)


def _samples(devices):
    """Arrays that differ in every word that is looked for; flags in patterns of their own."""
    first, last = devices[0], devices[len(devices) - 1]
    return [
        _make((3,), np.float32, first, True, False),
        _make((2, 5), np.int32, last, False, False),
        _make((), np.float32, first, False, True),
        _make((4, 1, 2), np.int8, last, True, True),
        _make((7,), np.bool_, first, True, False),
        _make((1, 6), np.complex64, last, False, True),
        _make((0,), np.uint16, first, False, False),
    ]


def _replicated(devices):
    """An array over several devices, as another confirmation; None on one device."""
    if len(devices) < 2:
        return None
    import jax

    mesh = jax.sharding.Mesh(np.asarray(devices), ("jaxmarshal",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    data = np.zeros((2, 2), np.float32)
    aval = _reference.ShapedArray(data.shape, data.dtype)
    return _reference.batched_device_put(
        aval, sharding, [data] * len(devices), list(devices), True
    )


cdef Py_ssize_t _single(list offsets, str name) except? -1:
    if len(offsets) == 1:
        return offsets[0]
    _notes.append(f"{name}: {len(offsets)} offsets fit")
    return -1


cdef Py_ssize_t _find_object(list arrays, list expected, Py_ssize_t size, str name) except? -1:
    """The one offset at which every array holds a pointer to its expected object."""
    cdef Py_ssize_t offset
    found = []
    for offset in range(sizeof(PyObject), size - WORD + 1, WORD):
        for array, wanted in zip(arrays, expected):
            if jm_word(<void*>array, offset) != <void*>wanted:
                break
        else:
            found.append(offset)
    return _single(found, name)


cdef Py_ssize_t _find_flag(list arrays, list expected, Py_ssize_t size, str name) except? -1:
    """The one byte that is 1 in the arrays for which the flag is true and 0 in the others."""
    cdef Py_ssize_t offset
    found = []
    for offset in range(sizeof(PyObject), size):
        for array, wanted in zip(arrays, expected):
            if jm_byte(<void*>array, offset) != (1 if wanted else 0):
                break
        else:
            found.append(offset)
    return _single(found, name)


cdef Py_ssize_t _find_buffer(list live, object twin, object doomed, Py_ssize_t size) except? -1:
    """The one word that is set and distinct in live arrays and NULL after `delete`.

    `doomed` is deleted here. `twin` is another live array; it tells words that never change from
    words that a deletion clears.
    """
    cdef Py_ssize_t offset
    before = {}
    for offset in range(sizeof(PyObject), size - WORD + 1, WORD):
        words = {<size_t>jm_word(<void*>array, offset) for array in live}
        words.add(<size_t>jm_word(<void*>twin, offset))
        words.add(<size_t>jm_word(<void*>doomed, offset))
        if len(words) == len(live) + 2 and 0 not in words and not any(w % WORD for w in words):
            before[offset] = <size_t>jm_word(<void*>twin, offset)
    doomed.delete()
    found = [
        offset for offset, word in before.items()
        if jm_word(<void*>doomed, offset) == NULL and <size_t>jm_word(<void*>twin, offset) == word
    ]
    return _single(found, "buffer")


def _column_major(device):
    """Arrays on a CPU device whose data are column-major, imported through DLPack."""
    arrays = []
    shapes = ((3, 4), (5, 2), (8, 8), (2, 9))
    for dtype, (rows, columns) in itertools.product((np.float32, np.int32), shapes):
        nbytes = rows * columns * np.dtype(dtype).itemsize
        block = np.zeros(nbytes + 64, np.uint8)
        start = -block.ctypes.data % 64
        data = block[start:start + nbytes].view(dtype).reshape(columns, rows).T
        capsule = data.__dlpack__()
        try:
            array = _reference.dlpack_to_array(capsule, device, None, None, 1)
        except TypeError:
            array = _reference.dlpack_to_array(capsule, device, None, None)
        if not str(array._pjrt_layout).startswith("{0,1}"):
            raise RuntimeError("the DLPack import was not column-major")
        arrays.append(array)
    return arrays


cdef int _find_data_layout(list arrays, object cpu_device) except -1:
    """The words of a runtime buffer that are NULL exactly when the data layout is the default."""
    cdef void* buffer
    cdef size_t size = LARGEST_BUFFER, vtable = 0, offset
    if not JM_HAVE_ALLOCATION_SIZE:
        _notes.append("data layout: nothing tells the size of an allocation here")
        return 0
    if cpu_device is None or _reference.dlpack_to_array is None:
        _notes.append("data layout: no CPU backend to make column-major samples on")
        return 0
    custom = _column_major(cpu_device)
    for array in arrays + custom:
        buffer = jm_word(<void*>array, layout.buffer)
        # An allocation may be a little longer than asked for: the shortest one counts.
        size = min(size, jm_allocation_size(buffer))
        if vtable == 0:
            vtable = <size_t>jm_word(buffer, 0)
        if size < SMALLEST_BUFFER or <size_t>jm_word(buffer, 0) != vtable:
            _notes.append("data layout: runtime buffers are not of one class")
            return 0
    count = 0
    for offset in range(WORD, size - WORD + 1, WORD):
        if all(jm_word(jm_word(<void*>a, layout.buffer), offset) == NULL for a in arrays) and all(
            jm_word(jm_word(<void*>a, layout.buffer), offset) != NULL for a in custom
        ):
            if count == MAX_LAYOUT_WORDS:
                _notes.append("data layout: too many words fit")
                return 0
            layout.layout_words[count] = offset
            count += 1
    if count == 0:
        _notes.append("data layout: no word fits")
        return 0
    layout.vtable = vtable
    layout.layout_count = count
    return 0


def _search():
    cdef Py_ssize_t size
    backends = _reference.xla_bridge._backends
    default = _reference.xla_bridge._default_backend
    devices = default.local_devices()
    cpu = backends.get("cpu")
    arrays = _samples(devices)
    replicated = _replicated(devices)
    if replicated is not None:
        arrays.append(replicated)
    size = (<PyTypeObject*>_reference.ArrayImpl).tp_basicsize
    layout.aval = _find_object(arrays, [a.aval for a in arrays], size, "aval")
    layout.dtype = _find_object(arrays, [a.dtype for a in arrays], size, "dtype")
    layout.sharding = _find_object(arrays, [a.sharding for a in arrays], size, "sharding")
    layout.committed = _find_flag(arrays, [a.committed for a in arrays], size, "committed")
    doomed = _make((9,), np.float32, devices[0], True)
    twin = _make((9,), np.float32, devices[0], True)
    layout.buffer = _find_buffer(arrays, twin, doomed, size)
    if layout.buffer >= 0:
        cpu_devices = cpu.local_devices() if cpu is not None else None
        # Parts of a buffer that nobody writes hold anything: many samples leave no such word.
        arrays += [twin, *_samples(devices)]
        _find_data_layout(arrays, cpu_devices[0] if cpu_devices else None)


cdef int calibrate() except -1:
    _notes.clear()
    _forget()
    # Set first: whatever goes wrong below, the readers use the attributes.
    layout.calibrated = 1
    if os.environ.get("JAXMARSHAL_OBJECT_LAYOUT", "").lower() in ("off", "0", "false"):
        _notes.append("switched off by JAXMARSHAL_OBJECT_LAYOUT")
        return 0
    if not _reference.HAVE_LAYOUT_PROBE:
        _notes.append("a private name is missing")
        return 0
    try:
        with _AllowTransfers():
            _search()
    except Exception as error:
        _forget()
        _notes.append(f"calibration failed: {error!r}")
    return 0


def describe() -> dict[str, object]:
    """What was calibrated and where: byte offsets, or None where the attribute is used.

    `calibrated` is false before the first array was met. `notes` say why a word is missing.
    """
    def known(Py_ssize_t offset):
        return offset if layout.calibrated and offset >= 0 else None

    return {
        "calibrated": bool(layout.calibrated),
        "aval": known(layout.aval),
        "dtype": known(layout.dtype),
        "sharding": known(layout.sharding),
        "committed": known(layout.committed),
        "buffer": known(layout.buffer),
        "data_layout": [layout.layout_words[i] for i in range(layout.layout_count)],
        "notes": list(_notes),
    }


def read(array: object) -> dict[str, object]:
    """Every word of one `ArrayImpl` as the readers see it, for tests and for `doctor`."""
    if type(array) is not _reference.ArrayImpl:
        raise TypeError(f"expected an ArrayImpl, got {type(array).__name__}")
    cdef void* buffer = array_buffer(array)
    return {
        "aval": array_aval(array),
        "dtype": array_dtype(array),
        "sharding": array_sharding(array),
        "committed": array_committed(array),
        "deleted": buffer == NULL,
        "default_layout": buffer != NULL and array_layout_is_default(array, buffer),
        "default_layout_proven": (
            layout.buffer >= 0 and buffer != NULL
            and bool(jm_buffer_layout_is_default(&layout, buffer))
        ),
    }


def recalibrate() -> dict[str, object]:
    """Search again and return `describe()`; for tests and for `doctor`."""
    calibrate()
    return describe()


_forget()
