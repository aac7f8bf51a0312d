"""Plans for a `filter_jit`: a call of it, arrays and all, to the plan of the jitted function in it.

Such a function flattens its arguments, calls a jitted function with the arrays in dicts and all
else as one static argument, and puts the static parts of the result back into its tree. A plan of
that jitted function says what those static parts were. From it is made a plan that fits the
caller's own arguments: the same guards, the same executable, another structure on either side.
"""

from jaxmarshal._core.context.bypassed cimport Rules
from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.plans.call cimport Call, StaticRule
from jaxmarshal._core.plans.jit_plans cimport JitPlans
from jaxmarshal._core.plans.plan cimport Plan
from jaxmarshal._core.values.fields cimport Fields

# What a library's `filter_jit` is made of.
cdef class Library:
    cdef int entry               # the entry point that its calls are counted for
    cdef object wrapper            # of the objects that are called
    cdef object reference        # the function that calls them
    cdef object names_of         # class to (dynamic, static) names of its fields, or None
    cdef Rules rules             # what its code goes through
    cdef object check            # class to: are these still what its flatten function reads?
    cdef object combine          # puts the static parts of a result back into its tree
    cdef object logger           # which is not to say what the library says better
    cdef object make_filter      # makes the filter that it gets for the time of a call
    cdef bint marks              # a result begins with a marker that is waited for
    cdef bint by_type            # static leaves that are equal are told apart by their types
    cdef tuple extra             # see `fields.Fields`
    cdef object missing
    cdef tuple own_nodes         # classes of custom nodes that no code of users makes
    cdef dict fields             # class to its Fields, or None

# How the arguments of a call come to be first and rest.
cdef class Binding:
    cdef object signature    # of the function, owned; compared by identity
    cdef Py_ssize_t n        # arguments by position
    cdef tuple names         # and by name
    cdef tuple key           # what is donated, and the names of arguments that stay by name
    cdef tuple order         # in the order of the leaves: numbers of arguments; -1: the function

# The binding of such a call. Raises what binding raises.
cdef Binding make_binding(object signature, Py_ssize_t n, tuple names, bint first, bint rest)

# The plan that fits a call of a jitted function, which is not run; or None.
cdef Plan fitting_plan(JitPlans plans, Context context, Call* call)

# A plan for the call, whose arguments are: the static part of the function and the binding's key,
# both static, and then what `binding.order` says. `inner` is the plan of the jitted function.
# None where there is something in it that cannot be read. Raises what hashing raises.
cdef Plan make_filtered_plan(
    Library library, Plan inner, Binding binding, Call* call, StaticRule rule
)
