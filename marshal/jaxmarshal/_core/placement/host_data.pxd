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

# The part of an array from `starts` with `lengths`, one each a dimension, as a view that keeps
# `owner`, which is no array, alive.
cdef object cut_array(
    object array, object owner, const Py_ssize_t* starts, const Py_ssize_t* lengths
)
