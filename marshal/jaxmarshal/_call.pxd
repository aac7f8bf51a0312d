"""A call as it came in, and whether one of an owner's plans fits it."""

from cpython.object cimport PyObject

from jaxmarshal._argtable cimport jm_table
from jaxmarshal._context cimport Context
from jaxmarshal._intake cimport jm_intake
from jaxmarshal._plan cimport Plan, Plans
from jaxmarshal._tree cimport Structure

# The arguments of one call in the manner of vectorcall; all borrowed.
ctypedef struct Call:
    PyObject** args
    Py_ssize_t n        # by position; those by name follow
    PyObject* names     # a tuple, or NULL for none
    bint flat           # the arguments are leaves, and the results a list

# A call with these arguments in any tree, `n` of them by position.
cdef inline void describe(Call* call, PyObject** args, Py_ssize_t n, PyObject* names) noexcept:
    call.args = args
    call.n = n
    call.names = names
    call.flat = False

# Which arguments are static: by position, counted from the end where negative, and by name.
cdef class StaticRule:
    cdef frozenset numbers
    cdef frozenset names

# A static argument of a recorded call.
cdef class StaticArgument:
    cdef Py_ssize_t number    # its position, or -1
    cdef str name             # its name, or None
    cdef object value         # owned, as the reference's cache does
    cdef Py_hash_t hash

# Append the leaves of the arguments that are not static to `table` and their nodes to `structure`,
# which has to be `by_node`. Returns 0 or a `_stats.Reason`; raises as `flatten` does.
cdef int flatten_call(
    Call* call, StaticRule rule, Structure* structure, jm_table* table
) except -1

# Tell a plan which arguments are by position, by name and static. Raises where one cannot be
# hashed. Takes the structure.
cdef int describe_call(Plan plan, Call* call, StaticRule rule, Structure* structure) except -1

# Take the arguments if they have the plan's structure; returns as `match` does.
cdef int match_call(Plan plan, Call* call, jm_intake* intake) except -1

# The result of the first plan that fits the call, a new reference; or NULL with a reason why none
# does. Raises what jaxlib raises.
cdef PyObject* try_plans(
    Plans plans, Context context, Call* call, int* reason
) except? NULL
