"""Values that a call depends on as they are: static arguments, and parts of trees.

They are compared as the reference's caches compare them, by hash, type and equality. Whatever can
be compared without users' code is.
"""

from cpython.object cimport PyObject

# What the user's code was asked while plans are tried, so that it is asked once a call.
ctypedef struct Asked:
    PyObject* flattened    # borrowed: custom nodes, see `match`; NULL: nothing is kept
    PyObject* hashes       # borrowed: a dict, address of a static value to its hash; or NULL
    bint ran               # was any of it called at all?
    bint comparing         # is a static value being hashed or compared, or has that failed?
    # Owned: the error of a static argument that was to be compared, or NULL. `keeps_error` says
    # that whoever tries plans raises it where the reference finds nothing wrong.
    bint keeps_error
    PyObject* error

# A static value of a recorded call.
cdef class StaticArgument:
    cdef Py_ssize_t number    # its position, or -1
    cdef str name             # its name, or None
    cdef object value         # owned, as the reference's cache does
    cdef Py_hash_t hash
    # It is an item of a tuple that the reference compares: then one and the same object is equal.
    cdef bint inside
    cdef bint hashed          # the reference compares hashes, too

# Raises what hashing raises.
cdef StaticArgument make_static(Py_ssize_t number, str name, object value)

# The same for an item of a tuple that the reference compares; where it takes no hash of it, what
# cannot be hashed will do. Not `inside`: it looks at the types of the items, too.
cdef StaticArgument make_static_part(object value, bint hashed, bint inside=*)

# The same as far as it can be told without the user's code: 0, 1, or MAYBE.
cdef enum:
    MAYBE = 2
cdef int same_unasked(StaticArgument known, PyObject* found) except -1

# Is this what was recorded? Raises what hashes and comparisons raise.
cdef bint same_static(StaticArgument known, PyObject* found, Asked* asked) except -1

# May comparing another value with it run users' code?
cdef bint asks_user_code(StaticArgument known) except -1
