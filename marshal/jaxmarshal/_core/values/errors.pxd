"""Handling an error without a try statement around the call that may raise it.

A try statement saves and restores the thread's exception state, which every call would pay for. On
a hot path a function is called through a pointer declared `noexcept`; where it returns its error
value, `propagate` raises the pending error inside a try statement of its own.
"""

# Raise the error that a C function has just reported.
cdef inline int propagate() except -1:
    return -1

# Was an error raised by code of the program, as custom nodes, comparisons and signal handlers run
# it? Then it is raised at once: the reference, were it called, might not meet it again. Its
# traceback has a frame of neither JAX, jaxlib, numpy nor jaxmarshal.
cdef bint is_of_program(object error) except -1
