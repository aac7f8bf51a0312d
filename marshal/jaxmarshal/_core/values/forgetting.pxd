"""Dropping what is kept, when JAX drops its own caches."""

# Call `function` without arguments whenever everything recorded is dropped.
cdef void on_forget(object function)

# Call all of these. Raises what they raise.
cdef int forget_all() except -1
