"""A call as it came in, and whether one of an owner's plans fits it."""

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.plans.intake cimport jm_intake
from jaxmarshal._core.plans.plan cimport Plan, Plans
from jaxmarshal._core.values.arguments cimport jm_table
from jaxmarshal._core.values.static_values cimport Asked
from jaxmarshal._core.values.trees cimport Structure

ctypedef Context (*context_function)(int* reason)

# The arguments of one call in the manner of vectorcall; all borrowed.
ctypedef struct Call:
    PyObject** args
    Py_ssize_t n        # by position; those by name follow
    PyObject* names     # a tuple, or NULL for none
    int entry           # the entry point that a hit is counted for
    bint flat           # the arguments are leaves, and the results a list
    Asked asked         # what the user's code was asked while plans are tried
    context_function context_of    # asked once more where the user's code was; NULL: not needed
    bint is_in_context             # it was, and said the same
    # Of a front whose arguments are graphs: a `Nodes`, borrowed, or NULL. The results are the list
    # as it came then, and `fitted` is the plan that made them, a new reference.
    PyObject* nodes
    PyObject* fitted

# A call with these arguments in any tree, `n` of them by position.
cdef inline void describe_arguments(
    Call* call, PyObject** args, Py_ssize_t n, PyObject* names, context_function context_of=NULL
) noexcept:
    call.args = args
    call.n = n
    call.names = names
    call.entry = -1
    call.flat = False
    call.asked.flattened = NULL
    call.asked.hashes = NULL
    call.asked.ran = call.asked.comparing = call.asked.keeps_error = False
    call.asked.error = NULL
    call.context_of = context_of
    call.is_in_context = False
    call.nodes = call.fitted = NULL

# Are all names exact strings? Those of a class of its own may be sorted in another way.
cdef bint are_plain_names(PyObject* names) noexcept

# Which arguments are static: by position, counted from the end where negative, and by name.
cdef class StaticRule:
    cdef frozenset numbers
    cdef frozenset names

# Append the leaves of the arguments that are not static to `table` and their nodes to `structure`,
# which has to be `by_node`. The number of each slot is that of its argument among those by position
# that are not static, or -1 for one by name. Returns 0 or a `counting.Reason`; raises as `flatten`
# does.
cdef int flatten_call(
    Call* call, StaticRule rule, Structure* structure, jm_table* table
) except -1

# A number that calls which one plan fits have in common; it decides nothing.
cdef uint64_t signature_of(Call* call, StaticRule rule, Context context) except? 0

# Tell a plan which arguments are by position, by name and static. Raises where one cannot be
# hashed. Takes the structure.
cdef int describe_call(Plan plan, Call* call, StaticRule rule, Structure* structure) except -1

# An error of the program's, where a static argument was hashed or compared: raise it if the
# reference finds nothing wrong.
cdef int keep_error(Call* call, object error) except -1

# Take the arguments if they have the plan's structure; returns as `match` does.
cdef int match_call(Plan plan, Call* call, jm_intake* intake) except -1

# The result of the first plan that fits the call, a new reference; or NULL with a reason why none
# does. Raises what jaxlib raises.
cdef PyObject* try_plans(
    Plans plans, StaticRule rule, Context context, Call* call, int* reason
) except? NULL
# See `errors`.
ctypedef PyObject* (*try_plans_function)(Plans, StaticRule, Context, Call*, int*) noexcept
