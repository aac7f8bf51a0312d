"""What plans would do with a call, found without running it."""

from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.plans.call cimport Call
from jaxmarshal._core.plans.plan cimport Plans
from jaxmarshal._core.values.arguments cimport jm_table

# Which of the arguments that were flattened is in the way of a plan, for that reason; or -1.
cdef Py_ssize_t refused_argument(jm_table* table, int reason) except -2

# What the plans of an owner would do: (reason, argument, recorded word, found word). The reason is
# TREE where none has the call's structure.
cdef tuple probe_plans(Plans plans, Context context, Call* call)

# Describe a call of a function with these arguments; returns what keeps its pointers alive.
cdef tuple gather_call(Call* call, tuple args, dict kwargs)
