"""What the entry points that run executables share."""

from cpython.object cimport PyObject

from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.plans.call cimport Call, StaticRule
from jaxmarshal._core.plans.plan cimport Plans
from jaxmarshal._core.values.arguments cimport jm_table
from jaxmarshal._core.values.trees cimport Structure

# The current context if an executable may run without the reference looking on; None with a reason.
cdef Context context_for_execution(Plans plans, int* reason)

# How many jitted functions are being compiled for the first time and will run what they compiled by
# way of these entry points, once: nothing is recorded of that.
cdef int compiling

# As `flatten_call`; HOST_LEAVES where jaxlib's C++ call, which makes no array objects of host
# arguments, costs less than a plan would.
cdef int flatten_for_plan(
    Call* call, StaticRule rule, Structure* structure, jm_table* table, bint keeps_scalars
) except -1

# Is it so for these arguments? With `keeps_scalars`, Python scalars are not counted: they are
# placed once, and kept for as long as they stay the same.
cdef bint is_better_in_cpp(jm_table* table, bint keeps_scalars) noexcept

# Which of the arguments that were flattened is in the way of a plan, for that reason; or -1.
cdef Py_ssize_t refused_argument(jm_table* table, int reason) except -2

# What the plans of an owner would do: (reason, argument, recorded word, found word). The reason is
# TREE where none has the call's structure.
cdef tuple probe_plans(Plans plans, Context context, Call* call)

# Describe a call of a function with these arguments; returns what keeps its pointers alive.
cdef tuple gather_call(Call* call, tuple args, dict kwargs)

# Call an executable with flat arguments through the plans of the first of them, the owner, which
# can be weakly referred to. Plans are made of the ExecuteReplicated that it is or that its
# attribute `unsafe_call` leads to, perhaps by way of others; where that ends in None, none is made.
# On a miss the result is that of the reference for the same arguments, on a hit a list; either is
# a new reference, and counted under `entry`. Raises what the reference raises. Needs the GIL;
# keeps no argument alive.
cdef PyObject* call_flat(
    PyObject** args, Py_ssize_t n, int entry, PyObject* reference
) except? NULL
