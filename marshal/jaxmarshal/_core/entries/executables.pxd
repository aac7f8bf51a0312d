"""What the entry points that run executables share."""

from cpython.object cimport PyObject

# Call an executable with flat arguments through the plans of the first of them, the owner, which
# can be weakly referred to. Plans are made of the ExecuteReplicated that it is or that its
# attribute `unsafe_call` leads to, perhaps by way of others; where that ends in None, none is made.
# On a miss the result is that of the reference for the same arguments, on a hit a list; either is
# a new reference, and counted under `entry`. Raises what the reference raises. Needs the GIL;
# keeps no argument alive.
cdef PyObject* call_flat(
    PyObject** args, Py_ssize_t n, int entry, PyObject* reference
) except? NULL
