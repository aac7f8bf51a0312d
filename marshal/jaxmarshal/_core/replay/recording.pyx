"""Recording calls of public functions: the reference is called, and a tape notes its steps.

If the tape says all of a call, the steps are kept as a `Play`. Of calls that differ in rows of an
index alone, samples are kept until two of them come to be one.
"""

import warnings

from cpython.object cimport PyObject

from jaxmarshal._core.context.bypassed cimport (
    attributes_of, function_rules, is_untouched, late_rules
)
from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.replay.key cimport (
    TO_ANY_BUT_KEYS, TO_THE_FIRST, Sources, has_own_default_impl, numbers_in, states_of
)
from jaxmarshal._core.replay.plays cimport (
    Play, Replay, Seen, has_room, is_play_wanted, keep_play, make_replay, play_of, words_of
)
from jaxmarshal._core.replay.tapes cimport (
    Step, Tape, describe_result, fold_constants, have_their_rules, keep_functions, merged_steps,
    needed_steps, prepare_constants, start_tape, stop_tape
)
from jaxmarshal._core.values.array_words cimport array_aval
from jaxmarshal._core.values.errors cimport is_of_program
from jaxmarshal._core.values.kinds cimport JM_KEY_ARRAY, Py_TYPE, jm_kind_of_type, types
from jaxmarshal._core.values.live_objects cimport JM_DEBUG
from jaxmarshal._reports.counting cimport enter, leave

import numpy as np

from jaxmarshal._jax import private

cdef enum:
    MOST_WAITED = 1024     # calls of a kind before one is recorded again, where none could be kept
    MOST_SAMPLES = 64      # kinds of arrays of which an index was seen once

cdef double _largest_factor = 1 << 32    # an int of 32 bits

cdef object _single_type = private.SingleDeviceSharding
cdef object _debug_key_reuse = private.debug_key_reuse
cdef object _literal_type = private.TypedNdArray

cdef int times_to_fuse = 100


def fuse_after(int times) -> int:
    """Have steps become fewer after so many times; returns the number until now. For tests."""
    global times_to_fuse
    before, times_to_fuse = times_to_fuse, times
    return before


# --- Recording -----------------------------------------------------------------------------------

cdef bint _converts_silently(object value, object dtype) except -1:
    """Can numpy's conversion neither warn nor fail, whatever `np.errstate` says?"""
    if type(value) is complex and dtype.kind != "c":
        return False
    try:
        with np.errstate(all="raise"):
            np.asarray(value).astype(dtype)
            np.asarray(value, dtype)
    except Exception:
        return False
    return True


cdef bint _has_warned = False


cdef class _Listener:
    """What stands for `warnings.warn` while a tape is written, and notes that it was called.

    Others may take it meanwhile, keep it, and put it back later. So each hands on to the very
    function that it replaced, and goes when it is met where it has no business any more.
    """

    cdef object function
    cdef bint is_over

    def __init__(self, function):
        self.function = function

    def __call__(self, *args, **kwargs):
        global _has_warned
        _has_warned = True
        _end_listening()
        return self.function(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.function, name)


cdef int _end_listening() except -1:
    """Take away what listens to a tape that is not being written any more."""
    while type(warnings.warn) is _Listener and (<_Listener>warnings.warn).is_over:
        warnings.warn = (<_Listener>warnings.warn).function
    return 0


cdef object _call_and_listen(object function, tuple args, dict kwargs):
    """Call it, and hear whether it warns: then it is to be called again the next time."""
    global _has_warned
    cdef _Listener listener
    _end_listening()
    _has_warned = False
    listener = _Listener(warnings.warn)
    warnings.warn = listener
    try:
        return function(*args, **kwargs)
    finally:
        listener.is_over = True
        _end_listening()


cdef object _call_on_tape(object function, tuple args, dict kwargs):
    """Call the reference while a tape is written."""
    enter()
    try:
        return _call_and_listen(function, args, kwargs)
    finally:
        leave()
        stop_tape()


cdef void _wait_longer(Replay replay) noexcept:
    """Nothing could be kept: what was in the way may be gone later."""
    replay.seen = 0
    replay.wait = min(2 * replay.wait, MOST_WAITED)


cdef bint _sees_primitives() except -1:
    """Do tapes get to know which primitives are bound?"""
    return private.Primitive.bind is not private.primitive_bind


cdef object _dtype_of(object array):
    if isinstance(array, (np.ndarray, np.generic)):
        return array.dtype
    return array_aval(words_of(array)).dtype


cdef bint _is_key(object array) except -1:
    return jm_kind_of_type(&types, Py_TYPE(<PyObject*>array)) == JM_KEY_ARRAY


cdef set _dtypes_on(Tape tape):
    """Those of all arrays on a tape to which numbers may be converted, and of its constants."""
    cdef Step step
    cdef list arrays = tape.alive
    if tape.numbers == TO_ANY_BUT_KEYS:
        arrays = [array for array in arrays[1:] if not _is_key(array)]
    found = {_dtype_of(array) for array in arrays}
    for step in tape.steps:
        found.update([
            arg.dtype for arg in step.args
            if isinstance(arg, (np.ndarray, np.generic)) or type(arg) is _literal_type
        ])
    return found


cdef double _least_that_may_overflow(Tape tape) except -1.0:
    """How large a number is of which the function may have made an infinite constant."""
    cdef Step step
    cdef double least = np.inf
    for step in tape.steps:
        for arg in step.args:
            if type(arg) is _literal_type:
                arg = np.asarray(arg)
            if not isinstance(arg, (float, np.ndarray, np.generic)):
                continue
            dtype = getattr(arg, "dtype", np.dtype(np.float32))
            if private.jnp.issubdtype(dtype, np.inexact) and not np.isfinite(arg).all():
                least = min(least, float(private.jnp.finfo(dtype).max) / _largest_factor)
    return least


cdef bint _says_nothing(object key, Tape tape) except -1:
    """Can converting the numbers among the arguments neither warn nor fail?

    Nor what the function computes of them on the host, as `fftfreq(n, d)` does of `n * d`.
    """
    cdef double least = _least_that_may_overflow(tape)
    dtypes = _dtypes_on(tape)
    for number in numbers_in(key):
        if least <= abs(number) < np.inf:
            return False
        for dtype in dtypes:
            # An int that a dtype of integers cannot hold is an error, and nothing is kept.
            if type(number) is int and (-128 <= number < 128 or dtype.kind in "iub"):
                continue
            # Where floats meet ints beside an index, JAX converts them, and warns by itself.
            if type(number) is float and dtype.kind in "iub" and tape.numbers == TO_THE_FIRST:
                continue
            if not _converts_silently(number, dtype):
                return False
    return True


# The primitive that functions with derivatives of their own go through; no tape gets to know it.
cdef tuple _custom_jvp = (
    (private.custom_jvp_primitive, attributes_of(private.custom_jvp_primitive))
    if private.HAVE_REPLAY else None
)


cdef object _described(Tape tape, object key, object result):
    """What the result is made of, or None where the tape does not say all of the call."""
    described = describe_result(tape, result)
    if tape.broken or _has_warned or described is None:
        return None
    if not is_untouched(function_rules) or not is_untouched(late_rules):
        return None
    if not _says_nothing(key, tape):
        return None
    if not have_their_rules([_custom_jvp]):
        return None
    return described


cdef list _primitives_of(Tape tape):
    return [_custom_jvp, *tape.primitives.values()]


cdef bint _are_on_one_device(Play play) except -1:
    """Are all sources arrays, on one device each?"""
    cdef Seen seen
    for seen in play.sources:
        if seen is None or type(seen.sharding) is not _single_type:
            return False
    return True


cdef Play _make_play(Tape tape, Sources* sources, object states, object key, object result):
    """What the tape says of the call, or None where that is not all of it."""
    cdef Play play
    described = _described(tape, key, result)
    if described is None:
        return None
    fold_constants(tape, described)
    prepare_constants(tape)
    keep_functions(tape)
    needed = needed_steps(tape, sources.count, described)
    if needed is None:
        return None
    play = play_of(sources)
    play.states = states
    play.steps, play.result = needed
    if len(play.steps) > 1 and _are_on_one_device(play):
        play.left = times_to_fuse
    play.primitives = _primitives_of(tape)
    return play


cdef bint hears_all() except -1:
    """Would a tape hear of all that decides?"""
    return (
        _sees_primitives() and not _debug_key_reuse.value and has_own_default_impl()
    )


cdef bint _would_be_heard(Sources* sources) except -1:
    """Would somebody hear that the reference compiles for other arguments than the program's?"""
    if not sources.converted:
        return False
    # Most programs do not take this path before they are set up.
    from jaxmarshal._core.replay import fusion

    return fusion.is_heard()


cdef object record(
    Replay replay, object key, Sources* sources, object function, bint casts, tuple args,
    dict kwargs, bint* kept
):
    cdef Tape tape
    cdef Play play = None
    kept[0] = False
    if _would_be_heard(sources):
        _wait_longer(replay)
        return None
    states = states_of(sources)
    tape = start_tape(
        [<object>sources.items[i] for i in range(sources.count)], sources.with_functions, casts
    )
    if tape is None:
        return None
    tape.numbers = sources.numbers
    result = _call_on_tape(function, args, kwargs)
    try:
        play = _make_play(tape, sources, states, key, result)
    except Exception as error:
        if JM_DEBUG or is_of_program(error):
            raise
    if play is None:
        _wait_longer(replay)
    else:
        keep_play(replay, play)
        kept[0] = True
    return result


# --- Ints that are indices -----------------------------------------------------------------------

cdef class Sample:
    """One call with an index, as `needed_steps` says it before anything is prepared."""

    cdef tuple rows
    cdef tuple steps
    cdef list seen    # of its arrays
    cdef object states

    def __cinit__(self, tuple rows, tuple steps, list seen, states):
        self.rows, self.steps, self.seen, self.states = rows, steps, seen, states

    cdef bint is_like(self, Sample other) except -1:
        """Do the two differ in the rows, and in nothing else that a guard compares?"""
        cdef Seen a, b
        if self.states is not other.states:
            return False
        for a, b in zip(self.seen, other.seen):
            if a.committed != b.committed or a.aval != b.aval or a.sharding != b.sharding:
                return False
        return True


cdef tuple _same_rows(Sample one, Sample other):
    """The rows of two samples, with None for those that differ.

    Empty where none does, and where two differ by as much: then the samples do not tell which of
    them an argument is, or is computed of.
    """
    cdef set differences = set()
    cdef list rows = []
    for a, b in zip(one.rows, other.rows):
        if a != b:
            if b - a in differences:
                return ()
            differences.add(b - a)
        rows.append(a if a == b else None)
    return tuple(rows) if differences else ()


cdef tuple rows_in(Sources* sources, Py_ssize_t n):
    return tuple([<object>sources.items[i] for i in range(sources.count - n, sources.count)])


cdef Sample _make_sample(
    Tape tape, Sources* sources, Py_ssize_t rows, object states, object key, object result
):
    """What the tape says of the call, or None where that is not all of it."""
    cdef Py_ssize_t arrays = sources.count - rows
    cdef tuple numbers = rows_in(sources, rows)
    described = _described(tape, key, result)
    if described is None:
        return None
    fold_constants(tape, described, numbers)
    keep_functions(tape)
    steps = needed_steps(tape, arrays, described)
    if steps is None:
        return None
    return Sample(numbers, steps, play_of(sources).sources[:arrays], states)


cdef Play _play_of_samples(Tape tape, Sample one, Sample other, Sources* sources):
    cdef Play play
    merged = merged_steps(one.steps, one.rows, other.steps, other.rows, len(one.seen))
    if merged is None:
        return None
    play = play_of(sources)
    play.states = one.states
    play.steps, play.result = merged
    play.left = times_to_fuse if len(play.steps) > 1 else 0
    play.primitives = _primitives_of(tape)
    return play


cdef int _keep_play_of_rows(
    Context context, Replay replay, object key, tuple same, Play play, Sources* sources
) except -1:
    """Keep it for the calls that it is about: all, or those with the same rows in some places."""
    if any([row is not None for row in same]):
        places = tuple([row is None for row in same])
        key = (key, same)
        if key not in context.replays and not has_room(context.replays):
            return 0
        if places not in replay.places:
            replay.places = [*replay.places, places]
        replay = context.replays.setdefault(key, make_replay())
    if is_play_wanted(replay, None, sources):
        keep_play(replay, play)
    return 0


cdef int _keep_sample(
    Context context, Replay replay, object key, Sample sample, Tape tape, Sources* sources
) except -1:
    """Keep it, or what it comes to with another one."""
    cdef Play play = None
    cdef Sample other
    cdef tuple same = ()
    if sample is None:
        _wait_longer(replay)
        return 0
    for other in replay.samples:
        if other.is_like(sample):
            same = _same_rows(other, sample)
            if same:
                play = _play_of_samples(tape, other, sample, sources)
            break
    else:
        replay.samples = [sample, *replay.samples[:MOST_SAMPLES - 1]]
        return 0
    replay.samples = [sample, *[one for one in replay.samples if one is not other]]
    if play is None:
        _wait_longer(replay)
        return 0
    return _keep_play_of_rows(context, replay, key, same, play, sources)


cdef object record_rows(
    Context context, object key, object row_key, Py_ssize_t rows, Sources* sources,
    object function, tuple args, dict kwargs
):
    cdef Tape tape
    cdef Sample sample
    cdef Replay replay = context.replays.get(row_key)
    if replay is None:
        if not has_room(context.replays):
            return None
        replay = context.replays[row_key] = make_replay()
    replay.seen += 1
    if replay.seen <= replay.wait:
        return None
    if _would_be_heard(sources):
        _wait_longer(replay)
        return None
    states = states_of(sources)
    tape = start_tape([<object>sources.items[i] for i in range(sources.count - rows)])
    if tape is None:
        return None
    tape.numbers = sources.numbers
    result = _call_on_tape(function, args, kwargs)
    try:
        sample = _make_sample(tape, sources, rows, states, key, result)
        _keep_sample(context, replay, row_key, sample, tape, sources)
    except Exception as error:
        if JM_DEBUG or is_of_program(error):
            raise
        _wait_longer(replay)
    return result
