"""Whole functions of `jax.numpy`: the jitted functions they called, called again without the rest.

The first calls of a kind go to the reference, and a tape notes the steps. If the result is that of
a step, the next such call takes the steps alone: what Python did in between depends on nothing but
what the key, the array's aval and the context say.
"""

from cpython.object cimport PyObject, PyTypeObject

from jaxmarshal._classify cimport (
    JM_BOOL, JM_FLOAT, Py_TYPE, jm_kind_of_type, types
)
from jaxmarshal._context cimport Context
from jaxmarshal._jit_context cimport operation_context
from jaxmarshal._layout cimport array_aval, array_sharding
from jaxmarshal cimport _tape
from jaxmarshal._tape cimport Tape, Value, start_tape, stop_tape
from jaxmarshal._stats cimport (
    NOT_RECORDED, OPTIONS, SHARDING, UNSUPPORTED, count_miss, entries, entry_number
)

from math import copysign

import numpy as np

from jaxmarshal import _reference

cdef enum:
    MOST_REPLAYS = 1024    # in one context; then all are forgotten
    MOST_WAITED = 1024     # calls of a kind before one is recorded again, where none could be kept

cdef object _zeros = _reference.jnp_zeros
cdef object _ones = _reference.jnp_ones
cdef object _full = _reference.jnp_full
cdef object _getitem = _reference.array_getitem
cdef PyTypeObject* _array_type = <PyTypeObject*>_reference.ArrayImpl
cdef object _single_type = _reference.SingleDeviceSharding
cdef bint _active = _reference.HAVE_REPLAY
cdef int _zeros_entry = entry_number("zeros")
cdef int _ones_entry = entry_number("ones")
cdef int _full_entry = entry_number("full")
cdef int _getitem_entry = entry_number("getitem")


cdef object _play(list steps, Py_ssize_t result, object source):
    cdef list values = [] if source is None else [source]
    for function, args in steps:
        values.append(function(*[
            values[(<Value>arg).number] if type(arg) is Value else arg for arg in args
        ]))
    return values[result]


# --- Recording -----------------------------------------------------------------------------------

# What is known about calls with one key: how many there were, after how many to record one, and the
# steps, one for each aval of the array that the call is about.
cdef class Replay:
    cdef int seen
    cdef int wait
    cdef list plays    # [aval or None, steps, number of the result]


cdef list _find_play(Replay replay, object aval):
    for play in replay.plays:
        if (<list>play)[0] is aval:
            return <list>play
    for play in replay.plays:
        if (<list>play)[0] == aval:
            (<list>play)[0] = aval
            return <list>play
    return None


cdef Replay _replay_of(Context context, object key):
    cdef Replay replay
    cdef dict replays = context.replays
    if replays is None:
        replays = context.replays = {}
    found = replays.get(key)
    if found is not None:
        return <Replay>found
    if len(replays) >= MOST_REPLAYS:
        replays.clear()
    replay = Replay()
    replay.plays = []
    replay.wait = 1
    replays[key] = replay
    return replay


cdef tuple _needed_steps(Tape tape, Py_ssize_t number, object source):
    """The steps that lead to a result, with its number among them.

    Others were taken by whatever else ran on this thread meanwhile: finalizers, signal handlers.
    """
    cdef Py_ssize_t i, first = 0 if source is None else 1
    cdef dict numbers = {}
    needed = {*range(first), number}
    for i in reversed(range(len(tape.steps))):
        if i + first in needed:
            needed.update([
                (<Value>arg).number for arg in tape.steps[i][1] if type(arg) is Value
            ])
    for i in sorted(needed):
        numbers[i] = Value(len(numbers))
    steps = [
        (function, [numbers[(<Value>arg).number] if type(arg) is Value else arg for arg in args])
        for i, (function, args) in enumerate(tape.steps) if i + first in needed
    ]
    return steps, (<Value>numbers[number]).number


cdef bint _converts_silently(object value, object dtype) except -1:
    """Can numpy's conversion neither warn nor fail, whatever `np.errstate` says?"""
    try:
        with np.errstate(all="raise"):
            np.asarray(value).astype(dtype)
            np.asarray(value, dtype)
    except Exception:
        return False
    return True


cdef void _wait_longer(Replay replay) noexcept:
    """Nothing could be kept: what was in the way may be gone later."""
    replay.seen = 0
    replay.wait = min(2 * replay.wait, MOST_WAITED)


cdef object _record(
    Replay replay, object source, object reference, tuple args, tuple conversion
):
    """Call the reference and keep the steps it took, if they are all of it."""
    cdef Tape tape
    if _tape.current is not None:
        return reference(*args)
    if conversion is not None and not _converts_silently(conversion[0], conversion[1]):
        _wait_longer(replay)
        return reference(*args)
    tape = start_tape(source)
    try:
        result = reference(*args)
    finally:
        stop_tape()
    number = tape.values.get(id(result))
    if tape.broken or number is None or result is source:
        _wait_longer(replay)
        return result
    aval = None if source is None else array_aval(source)
    steps, number = _needed_steps(tape, number, source)
    replay.plays = [[aval, steps, number], *replay.plays[:7]]
    return result


cdef object _replayed(
    int entry, object reference, object key, object source, tuple args, tuple conversion=None
):
    """The result of `reference(*args)`, where `key` says all about the call but its array.

    `conversion` is a value and a dtype, if numpy converts one to the other on the way.
    """
    cdef Context context
    cdef Replay replay
    cdef list play
    cdef int reason = UNSUPPORTED
    context = operation_context(&reason) if _active else None
    if context is None:
        count_miss(entry, reason)
        return reference(*args)
    replay = _replay_of(context, key)
    play = _find_play(replay, None if source is None else array_aval(source))
    if play is not None and _tape.current is None:
        try:
            result = _play(play[1], play[2], source)
        except Exception:
            pass    # the reference says what is wrong
        else:
            entries[entry].hits += 1
            return result
    count_miss(entry, NOT_RECORDED)
    replay.seen += 1
    if play is not None or replay.seen <= replay.wait:
        return reference(*args)
    return _record(replay, source, reference, args, conversion)


# --- Making arrays -------------------------------------------------------------------------------

cdef object _shape_key(object shape):
    """A shape, if it is one or several plain integers; else None."""
    if type(shape) is int:
        return shape
    if type(shape) is not tuple:
        return None
    for item in shape:
        if type(item) is not int:
            return None
    return shape


cdef object _dtype_key(object dtype):
    """A dtype that JAX has as it is, so that nothing is said about it; else None."""
    if dtype is None:
        return False
    if not isinstance(dtype, (type, np.dtype)):
        return None
    try:
        wanted = np.dtype(dtype)
        return wanted if _reference.canonicalize_dtype(wanted) == wanted else None
    except Exception:
        return None


cdef object _fill_key(object value):
    """A plain number with its type and, for what compares equal, its sign; else None."""
    cdef int kind = jm_kind_of_type(&types, Py_TYPE(<PyObject*>value))
    if kind < JM_BOOL or kind > JM_FLOAT:
        return None
    return (type(value), value, copysign(1, value) if kind == JM_FLOAT else 0)


cdef object _make(
    int entry, object reference, object shape, tuple rest, object dtype, dict options
):
    cdef object shape_key, dtype_key, fill_key
    if options["device"] is None and options.get("out_sharding") is None:
        shape_key = _shape_key(shape)
        dtype_key = _dtype_key(dtype)
        fill_key = _fill_key(rest[0]) if rest else entry
        if shape_key is not None and dtype_key is not None and fill_key is not None:
            key = (entry, shape_key, dtype_key, fill_key)
            return _replayed(
                entry, reference, key, None, (shape, *rest, dtype),
                None if dtype is None or not rest else (rest[0], dtype),
            )
    count_miss(entry, OPTIONS)
    return reference(shape, *rest, dtype, **options)


def zeros(shape, dtype=None, *, device=None, out_sharding=None):
    """`jax.numpy.zeros`."""
    return _make(
        _zeros_entry, _zeros, shape, (), dtype, dict(device=device, out_sharding=out_sharding)
    )


def ones(shape, dtype=None, *, device=None, out_sharding=None):
    """`jax.numpy.ones`."""
    return _make(
        _ones_entry, _ones, shape, (), dtype, dict(device=device, out_sharding=out_sharding)
    )


def full(shape, fill_value, dtype=None, *, device=None, out_sharding=None):
    """`jax.numpy.full`."""
    return _make(
        _full_entry, _full, shape, (fill_value,), dtype,
        dict(device=device, out_sharding=out_sharding),
    )


# --- Indexing ------------------------------------------------------------------------------------

cdef object _index_key(object index):
    """A static index as something to look up, or None."""
    if type(index) is int or index is Ellipsis:
        return index
    if type(index) is slice:
        parts = (index.start, index.stop, index.step)
        for part in parts:
            if part is not None and type(part) is not int:
                return None
        return ("slice", *parts)
    if type(index) is not tuple:
        return None
    keys = [_index_key(item) for item in index]
    return None if None in keys else ("tuple", *keys)


def getitem(self, idx, /):
    """`ArrayImpl.__getitem__`."""
    if Py_TYPE(<PyObject*>self) is not _array_type:
        return _getitem(self, idx)
    key = _index_key(idx)
    if key is None:
        count_miss(_getitem_entry, OPTIONS)
        return _getitem(self, idx)
    if type(array_sharding(self)) is not _single_type:
        count_miss(_getitem_entry, SHARDING)
        return _getitem(self, idx)
    return _replayed(_getitem_entry, _getitem, key, self, (self, idx))
