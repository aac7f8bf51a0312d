"""What is known about calls of public functions: what they did, by the arrays they did it to."""

from libc.stdint cimport uint64_t

from jaxmarshal._core.replay.key cimport Sources

cdef enum:
    MOST_KEPT = 4096    # kinds of calls in one context, and kinds of arrays of one of them

# What is kept in a table from which some things go so that others find room.
cdef class Kept:
    cdef bint used    # since it was last asked to give way

# What is compared of a source: its aval, sharding and committed flag; those of its words where it
# is a typed key. Nothing of host data, of which the key holds what counts.
cdef class Seen:
    cdef object aval
    cdef object sharding
    cdef bint committed

# One call: what it did, and of what.
cdef class Play(Kept):
    cdef object states       # what `states_of` returned
    cdef list sources        # of Seen, or None for host data
    cdef readonly list steps       # of Step
    cdef readonly object result    # its description
    cdef list primitives     # (primitive, Attributes) of all that were bound
    cdef int left            # so many times it is taken before its steps may become fewer; 0: never
    cdef Play fused          # the same with fewer steps, or None

# What is known about calls with one key: how many there were, after how many to record one, and
# what they did.
cdef class Replay(Kept):
    cdef int seen
    cdef int wait
    cdef list plays        # the last ones that were needed; all, if there are few
    cdef dict more         # if there are many: all, by what `placed_as` says; else None
    cdef list samples      # of calls that differ in rows, and may come to be one
    cdef list places       # of those that came to be one for some rows alone: which may differ

# A new one, of which nothing is known.
cdef Replay make_replay()

# The array that holds a source's data: itself, or the words of a typed key.
cdef object words_of(object source)

# A Play that knows nothing but these arrays, and the states that there are now.
cdef Play play_of(Sources* sources)

# The play that fits, or None.
cdef Play find_play(Replay replay, Sources* sources)

# Keep a play of these arrays, and forget one.
cdef int keep_play(Replay replay, Play play) except -1
cdef int drop_play(Replay replay, Play play) except -1

# Would a play of these arrays be kept? Where there are many, some have to be used no more, and the
# call has to be one that came before. Not asked by a call that is only a question.
cdef bint is_play_wanted(Replay replay, object key, Sources* sources) except -1

# Is there room in a table of Kept, by key? What was used since it was asked the last time stays.
cdef bint has_room(dict kept) except -1

# Did something with this hash come in before, among the last some thousands? It has now. Another
# thing may have the same hash.
cdef bint came_before(uint64_t number) noexcept

# Are steps taken that another thread has made one, where there are such?
cdef bint uses_fused
