"""Numpy arrays on their way to a device: what jaxlib is handed, and what is kept alive by that.

All need the GIL and borrow their arguments; what is returned as an object is owned by the caller.
"""

# Does JAX hand on views of host data? Before 0.9 it hands on the argument itself.
cdef bint hands_on_views

# Has an array weak references? JAX's cache of converted arrays holds one for each of its entries.
cdef bint is_watched(object array) noexcept

# Have jaxlib notice if it is done with an array's data: then that entry goes. May run any code.
cdef int let_go_of(object array) except -1

# What JAX's cache of converted arrays has for an array, or None where that is not of dtype number
# `typenum` and these lengths. Fills the cache.
cdef object canonical_array(
    object array, int typenum, Py_ssize_t ndim, const Py_ssize_t* dims
)

# A new array with the elements converted to `dtype`.
cdef object cast_array(object array, object dtype)

# A new view where the array is a view itself: it keeps alive what the array is a view of, and not
# the array. Otherwise the array. Subclasses are returned as they are.
cdef object view_of_base(object array)

# An uninitialized array of the same dtype and shape, C-contiguous, whose memory jaxlib can share.
cdef object aligned_like(object array)

# Copy the elements of one array to another of the same dtype and shape.
cdef int copy_array(object source, object target) except -1

# The part of an array from `starts` with `lengths`, one each a dimension, as a view that keeps
# `owner`, which is no array, alive.
cdef object cut_array(
    object array, object owner, const Py_ssize_t* starts, const Py_ssize_t* lengths
)

# --- Arrays whose data are replaced ---------------------------------------------------------------

# A jax.Array on memory of our own. A computation may read it as long as it runs, and jaxlib tells
# of its results alone whether it has ended. So the data are replaced where one of those is there to
# be asked, and is ready: all results of an execution become ready at once, after its last read.
cdef class HostBuffer:
    cdef object array
    cdef object memory     # the numpy array with which it shares its data
    cdef object witness    # a weak reference to a result; None where it has been ready

cdef enum BufferState:    # the best first
    FREE    # its data may be replaced
    BUSY    # a computation may still read it
    LOST    # nobody can tell, now or later; or the array was deleted
    NONE    # there is none

# May there be any? Not where the first attempts have failed.
cdef bint may_share() noexcept

# Are a jax.Array's data in this memory, that of a numpy array? Raises where the backend does not
# tell. Who asks makes jaxlib keep another array of its shard: it is asked of one that is let go of.
cdef bint are_shared(object array, object memory) except -1

# One of a jax.Array and the numpy array with which it shares memory.
cdef HostBuffer make_buffer(object array, object memory)

# Has the computation ended which a jax.Array is a result of? Raises if that was deleted.
cdef bint is_over(object result) except -1

# One that is free and was given under this key, which the caller has from now on; or None. `state`
# is the best of all.
cdef HostBuffer take_buffer(object key, int* state)

# The best state of those given under this key.
cdef int state_of_buffers(object key) except -1

# Have others take it, after its witness was set. The data of those under one key are of one kind.
cdef int give_buffer(object key, HostBuffer buffer) except -1
