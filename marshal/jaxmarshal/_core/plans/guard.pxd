"""The guard of a plan: it takes arguments that are as they were when the plan was recorded."""

from jaxmarshal._core.plans.intake cimport jm_intake
from jaxmarshal._core.plans.plan cimport Plan
from jaxmarshal._core.values.arguments cimport jm_slot, jm_table

# Begin to take the arguments of a call for this plan, in order, with `jm_take`: the guard. Host
# arguments and typed keys get slots in `table`, which is initialised and empty. `by_pointer` skips
# comparisons by equality. Once it has returned, `end_guard` has to be called, whatever follows.
cdef int begin_guard(Plan plan, jm_intake* intake, jm_table* table, bint by_pointer) except -1

# Release the arguments that were taken and empty the table.
cdef void end_guard(jm_intake* intake) noexcept

# Where and why an argument did not pass: (its number or -1, recorded word, found word).
cdef tuple failed_words(jm_intake* intake)

# Put the base array of a typed key into its slot. 0 if that is no ArrayImpl.
cdef bint take_base_array(jm_slot* slot) except -1
