"""Leaving calls to the reference, for longer and longer, where attempts come to nothing."""

from jaxmarshal._reports.counting cimport is_asked

cdef enum:
    MOST_FAILURES = 10    # in a row that are counted: then one call in 1023 is an attempt

# One more attempt has failed: how many calls to leave to the reference before the next one. The
# first `free` failures in a row cost nothing.
cdef inline int failed_again(int* failures, int free) noexcept:
    failures[0] = min(failures[0] + 1, MOST_FAILURES + free)
    return (1 << (failures[0] - free)) - 2 if failures[0] > free else 0

# Is this call one of those that are left? They are counted down, unless somebody only asks.
cdef inline bint is_left(int* calls) noexcept:
    if not calls[0]:
        return False
    if not is_asked():
        calls[0] -= 1
    return True
