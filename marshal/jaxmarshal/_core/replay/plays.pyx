"""What is known about calls of public functions: what they did, by the arrays they did it to.

Nothing is kept of a call that comes once: its hash alone is noted. What is kept gives way to what
is not in a rotation that is too wide for it, only where it is not used itself: otherwise each would
drop the other, and none would ever be found.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t
from libc.string cimport memmove, memset

from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.plans.jit_configuration cimport operation_context
from jaxmarshal._core.replay.key cimport Sources, are_states_now, states_of
from jaxmarshal._core.values.array_words cimport array_aval, array_committed, array_sharding
from jaxmarshal._core.values.forgetting cimport on_forget
from jaxmarshal._core.values.kinds cimport (
    JM_KEY_ARRAY, Py_TYPE, jm_kind_is_host, jm_kind_of_type, types
)
from jaxmarshal._core.values.shardings cimport are_equal, token_of
from jaxmarshal._reports.counting cimport is_asked

cdef enum:
    MOST_PLAYS = 16    # that are compared one after the other
    REFUSED = 15       # of sixteen that want to come into a full table: to record costs more
    ASKED = 4          # are asked to give way to each of the others
    SETS = 4096        # of hashes that are noted
    WAYS = 8           # in each

cdef uint64_t _hashes[SETS * WAYS]    # in each set the last one first


cdef class Kept:
    def __cinit__(self):
        self.used = True    # what is new is not asked at once


cdef class Play(Kept):
    def take(self, list steps, result):
        """Take these steps instead, which lead to the same bits."""
        cdef Play fused = Play()
        fused.steps, fused.result = steps, result
        self.fused = fused


# --- Tables --------------------------------------------------------------------------------------

cdef bint came_before(uint64_t number) noexcept:
    # Hashes of tuples that differ in a number are no random numbers yet.
    cdef uint64_t mixed = (number ^ number >> 29) * <uint64_t>0x9E3779B97F4A7C15
    cdef uint64_t* known = _hashes + (mixed ^ mixed >> 32) % SETS * WAYS
    cdef int i
    for i in range(WAYS):
        if known[i] == number:
            return True
    memmove(known + 1, known, (WAYS - 1) * sizeof(uint64_t))
    known[0] = number
    return False


def _forget() -> None:
    global _refused
    _refused = 0
    memset(_hashes, 0, sizeof(_hashes))


on_forget(_forget)


cdef int _refused = 0


cdef bint has_room(dict kept) except -1:
    global _refused
    cdef Kept oldest
    cdef int _
    if len(kept) < MOST_KEPT:
        return True
    _refused += 1
    if _refused <= REFUSED:
        return False
    _refused = 0
    for _ in range(ASKED):
        key = next(iter(kept), None)
        found = kept.pop(key, None)
        if found is None:
            return False    # another thread was quicker
        oldest = <Kept>found
        if not oldest.used:
            return True
        oldest.used = False
        kept[key] = oldest    # at the end, where it is asked last
    return False


# --- Arrays --------------------------------------------------------------------------------------

cdef object words_of(object source):
    if jm_kind_of_type(&types, Py_TYPE(<PyObject*>source)) == JM_KEY_ARRAY:
        return source._base_array
    return source


cdef Seen _see(object source):
    cdef Seen seen
    if jm_kind_is_host(jm_kind_of_type(&types, Py_TYPE(<PyObject*>source))):
        return None
    seen = Seen()
    source = words_of(source)
    seen.aval, seen.sharding = array_aval(source), array_sharding(source)
    seen.committed = array_committed(source)
    return seen


cdef Play play_of(Sources* sources):
    cdef Py_ssize_t i
    cdef Play play = Play()
    play.states = states_of(sources)
    play.sources = [_see(<object>sources.items[i]) for i in range(sources.count)]
    return play


cdef bint _fits(Play play, Sources* sources, object states, bint by_pointer) except -1:
    cdef Py_ssize_t i
    cdef Seen seen
    if play.states is not states:
        return False
    for i in range(sources.count):
        seen = <Seen>play.sources[i]
        if seen is None:
            continue
        source = words_of(<object>sources.items[i])
        if seen.committed != array_committed(source):
            return False
        aval, sharding = array_aval(source), array_sharding(source)
        if seen.aval is aval and seen.sharding is sharding:
            continue
        if by_pointer or seen.aval != aval or not are_equal(seen.sharding, sharding):
            return False
    return True


cdef int _adopt(Play play, Sources* sources) except -1:
    """Equal objects are compared by pointer the next time."""
    cdef Py_ssize_t i
    cdef Seen seen
    for i in range(sources.count):
        seen = <Seen>play.sources[i]
        if seen is None:
            continue
        source = words_of(<object>sources.items[i])
        seen.aval, seen.sharding = array_aval(source), array_sharding(source)
    return 0


cdef tuple _placed_as(Play play):
    """All that is compared, to look it up by."""
    cdef Seen seen
    cdef list parts = [play.states]
    for seen in play.sources:
        if seen is not None:
            parts += (seen.aval, token_of(seen.sharding), seen.committed)
    return tuple(parts)


# --- Plays ---------------------------------------------------------------------------------------

cdef Replay make_replay():
    cdef Replay replay = Replay()
    replay.plays = []
    replay.samples = []
    replay.places = []
    replay.wait = 1
    return replay


cdef Play _find_equal(Replay replay, Sources* sources, object states):
    """The play of arrays that are equal, which are not the objects that were seen."""
    cdef Play play
    if replay.more is not None:
        return replay.more.get(_placed_as(play_of(sources)))
    for play in replay.plays:
        if _fits(play, sources, states, False):
            return play
    return None


cdef int _put_first(Replay replay, Play play) except -1:
    others = [other for other in replay.plays if other is not play]
    replay.plays = [play, *others[:MOST_PLAYS - 1]]
    return 0


cdef Play find_play(Replay replay, Sources* sources):
    cdef Play play
    cdef object states = states_of(sources)
    for play in replay.plays:
        if _fits(play, sources, states, True):
            play.used = True
            return play
    play = _find_equal(replay, sources, states)
    if play is not None and not is_asked():
        play.used = True
        _adopt(play, sources)
        if replay.more is not None:
            _put_first(replay, play)
    return play


cdef int keep_play(Replay replay, Play play) except -1:
    cdef Play other
    if replay.more is None and len(replay.plays) == MOST_PLAYS:
        replay.more = {_placed_as(other): other for other in replay.plays}
    if replay.more is not None:
        replay.more[_placed_as(play)] = play
    return _put_first(replay, play)


cdef int drop_play(Replay replay, Play play) except -1:
    replay.plays = [other for other in replay.plays if other is not play]
    if replay.more is not None:
        replay.more = {key: other for key, other in replay.more.items() if other is not play}
    return 0


cdef bint is_play_wanted(Replay replay, object key, Sources* sources) except -1:
    if len(replay.plays) < MOST_PLAYS:
        return True
    if not came_before(<uint64_t><Py_ssize_t>hash((key, _placed_as(play_of(sources))))):
        return False
    return replay.more is None or has_room(replay.more)


# --- Steps made one by another thread ------------------------------------------------------------

cdef bint uses_fused = True


def use_fused(bint is_used) -> None:
    """Take steps made one where there are such, or the steps themselves."""
    global uses_fused
    uses_fused = is_used


def is_current(Context context, states) -> bool:
    """Is the configuration on this thread that in which a replay was recorded?"""
    cdef int reason
    return operation_context(&reason) is context and are_states_now(states)
