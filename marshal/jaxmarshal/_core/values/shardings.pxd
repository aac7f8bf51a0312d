"""Equality of shardings, for which JAX has a method in Python where there is one device."""

# What equal shardings have in common and others do not, to look something up by: an object without
# a meaning for those of one device, and others themselves. Raises what comparing them raises.
cdef object token_of(object sharding)

# Are two objects, shardings or avals, of one class, and equal? Shardings of one device are compared
# once each, and found by pointer afterwards. Raises what comparing them raises.
cdef bint are_equal(object a, object b) except -1
