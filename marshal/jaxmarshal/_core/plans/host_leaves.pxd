"""Whether a call with data of the host costs less by jaxlib's own C++ than by a plan."""

from jaxmarshal._core.plans.call cimport Call, StaticRule
from jaxmarshal._core.values.arguments cimport jm_table
from jaxmarshal._core.values.trees cimport Structure

# As `flatten_call`; HOST_LEAVES where jaxlib's C++ call, which makes no array objects of host
# arguments, costs less than a plan would, which has no HostBuffer for each of them. Host arguments
# whose numbers are in `donated`, or all of them with None, have the action DONATED then.
cdef int flatten_for_plan(
    Call* call, StaticRule rule, Structure* structure, jm_table* table, frozenset donated,
    bint keeps_scalars
) except -1

# Is it so for these arguments? With `keeps_scalars`, Python scalars are not counted, unless they
# are donated: they are placed once, and kept for as long as they stay the same.
cdef bint is_better_in_cpp(jm_table* table, bint keeps_scalars) noexcept
