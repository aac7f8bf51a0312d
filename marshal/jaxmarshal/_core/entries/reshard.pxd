"""`device_put` to targets that the reference reaches by jitted functions."""

from jaxmarshal._core.placement.records cimport Records
from jaxmarshal._core.values.arguments cimport jm_slot, jm_table

# Is it a memory space? What the reference calls for one depends on `srcs`, too.
cdef bint is_space(object target) noexcept

# Resolve an argument for such a target: HIT, or why the reference has to do it. `semantics` is a
# number of what the call says of aliasing. No side effects.
cdef int resolve_by_function(
    Records records, jm_slot* slot, object target, int semantics
) except -1

# The result for an argument whose action is CALL.
cdef object call_function(jm_slot* slot, object target)

# Keep the functions for the arguments in the table that have such targets, once the reference has
# returned `result`; `how` is JAX's word for `semantics`. Failures leave them unrecorded; they raise
# in a debug build only.
cdef int record_functions(
    Records records, jm_table* table, object device, int semantics, object how, object result
) except -1
