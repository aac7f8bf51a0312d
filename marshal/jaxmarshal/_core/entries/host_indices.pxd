"""Numpy data that JAX puts on the device first: `x[rng.permutation(n)]`, `x.at[i].set(data)`."""

# The array that `device_put` makes of data that nobody else has; counts as no call of a program.
cdef object put_own(object data)

# Is it a numpy array or scalar?
cdef bint is_of_numpy(object item) noexcept

# Is there numpy data in an index, itself or among its items and the bounds of slices?
cdef bint has_host_data(object index) except -1

# The same index with arrays on the device and ints in their places; None where it has anything
# else of numpy, or a number that the device's ints do not hold.
cdef object index_on_device(object index)

# Numpy data as `jnp.asarray` makes an array of them; None where numpy may warn meanwhile, or where
# they are none that JAX has.
cdef object value_on_device(object value)
