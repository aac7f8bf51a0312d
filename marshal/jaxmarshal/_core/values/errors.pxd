"""Handling an error without a try statement around the call that may raise it.

A try statement saves and restores the thread's exception state, which every call would pay for. On
a hot path a function is called through a pointer declared `noexcept`; where it returns its error
value, `propagate` raises the pending error inside a try statement of its own.
"""

# Raise the error that a C function has just reported.
cdef inline int propagate() except -1:
    return -1
