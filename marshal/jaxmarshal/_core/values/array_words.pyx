"""Calibration of the object layout: which word of an `ArrayImpl` is what.

jaxlib keeps an array's aval, dtype, sharding, committed flag and runtime buffer inside the Python
object, at offsets that differ between versions. Here a few arrays are made whose words are known
through public attributes; an offset is accepted only when it is the single one that fits all of
them. Where none can be confirmed the readers use the public attribute: slower, same answers.

What a runtime buffer's words are is asked of each client, with samples on its own devices, when the
first plan for its arrays is made.

`JAXMARSHAL_OBJECT_LAYOUT=off` in the environment skips the search.
"""

import os

import numpy as np

from cpython.object cimport PyObject, PyTypeObject
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memset

from jaxmarshal._core.values.forgetting cimport on_forget

from jaxmarshal._core.values import layout_samples
from jaxmarshal._jax import private

cdef extern from "jaxmarshal/compat.h":
    size_t jm_allocation_size(void* p) noexcept nogil
    int JM_HAVE_ALLOCATION_SIZE

cdef enum:
    WORD = sizeof(void*)
    SMALLEST_BUFFER = 64    # bytes; a runtime buffer is larger than this and smaller than that
    LARGEST_BUFFER = 8192
    MAX_LAYOUT_WORDS = 8
    LARGEST_PART = 256      # bytes of what a runtime buffer points to that are looked at
    MAX_RECORDS = 16        # of what runtime buffers are like; clients with equal ones share one
    FILLED_BLOCKS = 64      # more than the samples that are made from them

cdef list _notes = []
cdef jm_array_layout _records[MAX_RECORDS]
cdef int _record_count = 0
# Clients whose samples were looked at, and what was found: (client, number of its record or -1,
# notes). Owned until JAX drops the backend.
cdef list _clients = []


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


def _data_layout_attribute(array):
    """Is the array's layout the one its device would give to such data?"""
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


cdef void _clear(jm_array_layout* found) noexcept:
    memset(found, 0, sizeof(jm_array_layout))    # padding too: records are compared as bytes
    found.aval = found.dtype = found.sharding = found.committed = found.buffer = -1
    found.held = found.wrapped = found.data = -1


# --- The array -----------------------------------------------------------------------------------

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


cdef int _search(jm_array_layout* found) except -1:
    """Find the offsets in arrays of the default backend."""
    cdef Py_ssize_t size
    devices = private.xla_bridge._default_backend.local_devices()
    arrays = layout_samples.different(devices) + layout_samples.replicated(devices)
    size = (<PyTypeObject*>private.ArrayImpl).tp_basicsize
    found.aval = _find_object(arrays, [a.aval for a in arrays], size, "aval")
    found.dtype = _find_object(arrays, [a.dtype for a in arrays], size, "dtype")
    found.sharding = _find_object(arrays, [a.sharding for a in arrays], size, "sharding")
    found.committed = _find_flag(arrays, [a.committed for a in arrays], size, "committed")
    doomed = layout_samples.put((9,), np.float32, devices[0], True)
    twin = layout_samples.put((9,), np.float32, devices[0], True)
    found.buffer = _find_buffer(arrays, twin, doomed, size)
    return 0


def _is_switched_off():
    return os.environ.get("JAXMARSHAL_OBJECT_LAYOUT", "").lower() in ("off", "0", "false")


cdef int calibrate() except -1:
    global layout
    cdef jm_array_layout found
    _notes.clear()
    _clear(&found)
    # Set first: whatever goes wrong below, the readers use the attributes.
    found.calibrated = layout.calibrated = 1
    if _is_switched_off():
        _notes.append("switched off by JAXMARSHAL_OBJECT_LAYOUT")
    elif not private.HAVE_LAYOUT_PROBE:
        _notes.append("a private name is missing")
    else:
        try:
            with layout_samples.AllowTransfers():
                _search(&found)
        except Exception as error:
            _clear(&found)
            _notes.append(f"calibration failed: {error!r}")
    found.calibrated = 1
    layout = found    # at once: other threads read it
    return 0


# --- The runtime buffers of a client -------------------------------------------------------------

cdef size_t _class_of(list arrays, size_t* size) except 0:
    """The word of the class that all these buffers have, and how long the shortest one is."""
    cdef void* buffer
    cdef size_t vtable = 0
    size[0] = LARGEST_BUFFER
    for array in arrays:
        buffer = jm_word(<void*>array, layout.buffer)
        # An allocation may be a little longer than asked for: the shortest one counts.
        size[0] = min(size[0], jm_allocation_size(buffer))
        if vtable == 0:
            vtable = <size_t>jm_word(buffer, 0)
        if size[0] < SMALLEST_BUFFER or vtable == 0 or <size_t>jm_word(buffer, 0) != vtable:
            raise RuntimeError("runtime buffers are not of one class")
    return vtable


cdef int _find_data_layout(list default, list custom, jm_array_layout* found) except -1:
    """The words of a runtime buffer that are NULL exactly when the data layout is the default."""
    cdef size_t size, offset
    found.vtable = _class_of(default + custom, &size)
    for offset in range(WORD, size - WORD + 1, WORD):
        if all(jm_word(jm_word(<void*>a, layout.buffer), offset) == NULL for a in default) and all(
            jm_word(jm_word(<void*>a, layout.buffer), offset) != NULL for a in custom
        ):
            if found.layout_count == MAX_LAYOUT_WORDS:
                raise RuntimeError("too many words fit")
            found.layout_words[found.layout_count] = offset
            found.layout_count += 1
    if found.layout_count == 0:
        raise RuntimeError("no word fits")
    return 0


cdef list _words_at(int memory, size_t address):
    """What is at an address of which nothing is known, in words; an empty list if nothing is."""
    if address % WORD or address < LARGEST_PART:
        return []
    try:
        data = os.pread(memory, LARGEST_PART, address)
    except (OSError, OverflowError):
        return []
    return np.frombuffer(data[: len(data) // WORD * WORD], np.uintp).tolist()


cdef list _wrapped_at(int memory, list words, Py_ssize_t i):
    """The words of what a handle holds by its first word, if the i-th word points to such a one."""
    handle = _words_at(memory, words[i]) if i < len(words) else []
    return _words_at(memory, handle[0]) if handle else []


cdef dict _parts_of_all(list arrays, list spread, Py_ssize_t size):
    """The words of what each runtime buffer points to, where all point to one of one class.

    The keys are (offset in the runtime buffer, -1), and (offset, offset in that part) for what a
    handle there holds. The word before the first offset says of how many devices there are data.
    """
    cdef Py_ssize_t offset, i
    parts = {}
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        for offset in range(2 * WORD, size - WORD + 1, WORD):
            if not _says_how_many(arrays, spread, offset - WORD):
                continue
            held = [
                _words_at(memory, <size_t>jm_word(jm_word(<void*>array, layout.buffer), offset))
                for array in arrays
            ]
            if not all(held) or len({words[0] for words in held}) > 1:
                continue
            parts[offset, -1] = held
            for i in range(1, min([len(words) for words in held])):
                wrapped = [_wrapped_at(memory, words, i) for words in held]
                if all(wrapped) and len({words[0] for words in wrapped}) == 1:
                    parts[offset, i * WORD] = wrapped
    finally:
        os.close(memory)
    return parts


cdef bint _says_how_many(list alone, list spread, Py_ssize_t offset) except -1:
    """Does the word there say on how many devices the data of an array are?"""
    for array in alone:
        if <size_t>jm_word(jm_word(<void*>array, layout.buffer), offset) != JM_HELD_BY_ONE:
            return False
    for array in spread:
        n = len(array.sharding.device_set)
        if <size_t>jm_word(jm_word(<void*>array, layout.buffer), offset) != JM_HELD_BY(n):
            return False
    return True


cdef int _find_data(
    list live, list twice, list spread, Py_ssize_t size, jm_array_layout* found
) except -1:
    """The word that a deletion of the data clears, of what holds them.

    All arrays but those of `spread` are on one device. The data of `twice` are deleted here through
    the second array of each pair. The word is looked for in what the runtime buffers point to and,
    where none fits there, in what handles of a plugin hold. Nothing is kept where there is not
    exactly one.
    """
    cdef Py_ssize_t i
    fits = []
    arrays = live + [array for array, _ in twice]
    before = _parts_of_all(arrays, spread, size)
    for _, other in twice:
        other.delete()
    after = _parts_of_all(arrays, spread, size)
    for key in before.keys() & after.keys():
        one, two = before[key], after[key]
        if one[0][0] != two[0][0]:
            continue
        for i in range(1, min([len(words) for words in one + two])):
            if (
                all([words[i] for words in one + two[:len(live)]])
                and not any([words[i] for words in two[len(live):]])
            ):
                fits.append((*key, one[0][0], i * WORD))
    direct = [fit for fit in fits if fit[1] < 0]
    if len(direct or fits) != 1:
        return 0
    ((offset, wrapped, vtable, data),) = direct or fits
    found.held, found.wrapped, found.data = offset, wrapped, data
    found.held_vtable = before[offset, -1][0][0]
    found.wrapped_vtable = 0 if wrapped < 0 else vtable
    return 0


cdef int _record_for(const jm_array_layout* found) except -1:
    """The number of the record that says this, which may be new."""
    global _record_count
    cdef int i
    for i in range(_record_count):
        if memcmp(&_records[i], found, sizeof(jm_array_layout)) == 0:
            return i
    if _record_count == MAX_RECORDS:
        raise RuntimeError("too many kinds of runtime buffers")
    _records[_record_count] = found[0]
    _record_count += 1
    return _record_count - 1


cdef void _fill_free_memory(size_t size) noexcept:
    """Fill the free memory that the next runtime buffers are made of; `size` is theirs.

    What a buffer never writes to holds what was there before. It must not be NULL in all samples of
    the default layout.
    """
    cdef void* blocks[FILLED_BLOCKS]
    cdef int i
    for i in range(FILLED_BLOCKS):
        blocks[i] = malloc(size)
        if blocks[i] != NULL:
            memset(blocks[i], 0xFF, jm_allocation_size(blocks[i]))
    for i in range(FILLED_BLOCKS):
        free(blocks[i])


cdef int _search_client(object client, bint by_compiling) except -1:
    """The number of the record for a client's arrays; raises where there cannot be one."""
    cdef jm_array_layout found = layout
    cdef size_t size
    if not JM_HAVE_ALLOCATION_SIZE:
        raise RuntimeError("nothing tells the size of an allocation here")
    devices = client.local_devices()
    with layout_samples.AllowTransfers():
        if by_compiling:
            default, custom = layout_samples.compiled(devices[0])
        else:
            default, custom = layout_samples.by_data_layout(devices[0])
        _class_of(custom, &size)
        _fill_free_memory(size)
        default += layout_samples.different(devices) + layout_samples.replicated(devices)
        default += layout_samples.many(devices[0])
        live, twice = layout_samples.different(devices), layout_samples.held_twice(devices[0])
        spread = layout_samples.replicated(devices)
    _find_data_layout(default, custom, &found)
    _class_of(live + spread + [array for array, _ in twice], &size)
    try:
        _find_data(live, twice, spread, size, &found)
    except OSError:
        pass    # only some systems show a process its own memory
    return _record_for(&found)


cdef tuple _calibrate_client(object client, bint by_compiling):
    """What is known about a client's arrays, looked at now: an item of `_clients`."""
    global _clients
    cdef int record = -1
    notes = []
    try:
        record = _search_client(client, by_compiling)
    except Exception as error:
        notes.append(f"data layout on {client.platform}: {error}")
    entry = (client, record, notes)
    # A list of its own: other threads may be going through the old one.
    _clients = [other for other in _clients if other[0] is not client] + [entry]
    return entry


cdef tuple _client_entry(object client):
    for entry in _clients:
        if (<tuple>entry)[0] is client:
            return <tuple>entry
    return _calibrate_client(client, False)


cdef const jm_array_layout* words_of(object sharding) except? NULL:
    cdef int record
    if not layout.calibrated:
        calibrate()
    if not jm_words_are_known(&layout):
        return NULL
    try:
        client = next(iter(sharding.device_set)).client
    except Exception:
        return NULL
    record = _client_entry(client)[1]
    return NULL if record < 0 else &_records[record]


cdef bint _look_for_data(void* buffer, bint* is_there) noexcept:
    """Whether the runtime buffer has its data still, if it is of a client that is no plugin.

    False where that cannot be told.
    """
    cdef int i
    cdef const void* held
    for i in range(_record_count):    # whichever client it was found with
        # Of plugins all have one class, whatever their handles are like.
        if _records[i].held < 0 or _records[i].wrapped >= 0:
            continue
        if <size_t>jm_word(buffer, 0) == _records[i].vtable:
            held = jm_buffer_held(&_records[i], buffer)
            if held != NULL:
                is_there[0] = jm_word(held, _records[i].data) != NULL
                return True
    return False


cdef bint is_gone(object array) except -1:
    cdef bint is_there
    cdef void* buffer
    if layout.buffer < 0:
        return array.is_deleted()
    buffer = array_buffer(array)
    if buffer == NULL:
        return True
    if _look_for_data(buffer, &is_there):
        return not is_there
    return array.is_deleted()


cdef bint has_data_of_jaxlib(object array) except -1:
    cdef bint is_there
    cdef void* buffer
    if layout.buffer < 0:
        return False
    buffer = array_buffer(array)
    return buffer != NULL and _look_for_data(buffer, &is_there) and is_there


def _forget_clients() -> None:
    """Let go of clients that JAX has let go of."""
    global _clients
    alive = list(private.xla_bridge._backends.values())
    _clients = [entry for entry in _clients if any([entry[0] is client for client in alive])]


if private.HAVE_LAYOUT_PROBE:
    on_forget(_forget_clients)


# --- Asking --------------------------------------------------------------------------------------

cdef list _words_of_record(int record):
    if record < 0:
        return []
    return [_records[record].layout_words[i] for i in range(_records[record].layout_count)]


cdef tuple _data_of_record(int record):
    if record < 0 or _records[record].held < 0:
        return None
    if _records[record].wrapped < 0:
        return _records[record].held, _records[record].data
    return _records[record].held, _records[record].wrapped, _records[record].data


def describe() -> dict[str, object]:
    """What was calibrated and where: byte offsets, or None where the attribute is used.

    `calibrated` is false before the first array was met, if the search is not switched off.
    `data_layout` has the words of the default backend's runtime buffers, `clients` those of each
    backend that was looked at, by its platform.
    `data` is where a runtime buffer of the default backend points to what holds its data, where
    that points to the handle of a plugin if it is one, and where the last one has the word that is
    NULL once they are donated; None where XLA finds that out.
    `notes` say why a word is missing.
    """
    def known(Py_ssize_t offset):
        return offset if layout.calibrated and offset >= 0 else None

    default = private.xla_bridge._default_backend if private.HAVE_LAYOUT_PROBE else None
    names = {} if default is None else {
        id(client): name for name, client in private.xla_bridge._backends.items()
    }
    clients = [
        (names.get(id(client), client.platform), _words_of_record(record))
        for client, record, _ in _clients
    ]
    return {
        "calibrated": bool(layout.calibrated),
        "aval": known(layout.aval),
        "dtype": known(layout.dtype),
        "sharding": known(layout.sharding),
        "committed": known(layout.committed),
        "buffer": known(layout.buffer),
        "data_layout": next(
            (_words_of_record(record) for client, record, _ in _clients if client is default), []
        ),
        "clients": dict(clients),
        "data": next(
            (_data_of_record(record) for client, record, _ in _clients if client is default), None
        ),
        "vouched_for": bool(layout.calibrated and jm_words_are_known(&layout)),
        "notes": _notes + [note for _, _, notes in _clients for note in notes],
    }


def read(array: object) -> dict[str, object]:
    """Every word of one `ArrayImpl` as the readers see it, for tests and for `doctor`."""
    if type(array) is not private.ArrayImpl:
        raise TypeError(f"expected an ArrayImpl, got {type(array).__name__}")
    cdef const jm_array_layout* words = words_of(array.sharding)
    cdef void* buffer
    found = {
        "aval": array_aval(array),
        "dtype": array_dtype(array),
        "sharding": array_sharding(array),
        "committed": array_committed(array),
        "default_layout": not array.is_deleted() and _data_layout_attribute(array),
    }
    buffer = array_buffer(array)
    found["deleted"] = bool(is_gone(array))
    found["default_layout_proven"] = (
        words != NULL and buffer != NULL and bool(jm_buffer_layout_is_default(words, buffer))
    )
    found["donated_proven"] = found["default_layout_proven"] and bool(
        jm_buffer_is_donated(words, buffer)
    )
    return found


def recalibrate(by_compiling: bool = False) -> dict[str, object]:
    """Search again, also on the default backend's devices, and return `describe()`.

    For tests and for `doctor`. `by_compiling` makes samples as on a backend without DLPack.
    """
    calibrate()
    _clients.clear()
    if jm_words_are_known(&layout):
        _calibrate_client(private.xla_bridge._default_backend, by_compiling)
    return describe()


_clear(&layout)


if _is_switched_off():    # that no words will be found is known at once
    calibrate()
