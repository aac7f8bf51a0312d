"""Plans of jitted functions, and what makes them."""

from jaxmarshal._argtable cimport jm_table
from jaxmarshal._call cimport Call, StaticRule
from jaxmarshal._context cimport Context
from jaxmarshal._method cimport vectorcallfunc
from jaxmarshal._plan cimport Plan, Plans

# The plans of all jitted functions that share a cache of jaxlib: same function, same options.
cdef class JitPlans(Plans):
    cdef object __weakref__
    cdef StaticRule rule     # None where no argument is static
    cdef int missed          # calls in a row that no plan fitted
    cdef int leave           # calls of the recorder before it tries to make a plan again

# Stands in for the function that jaxlib calls when it does not know a call's signature.
cdef class Recorder:
    cdef vectorcallfunc vectorcall
    cdef object original     # the reference's function
    cdef JitPlans plans

# A plan for the arguments, which go into `table`, without what jaxlib makes of them; or None with
# a reason.
cdef Plan draft(JitPlans plans, Call* call, Context context, jm_table* table, int* reason)
