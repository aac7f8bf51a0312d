"""Making plans, in two steps: what the arguments are before the reference runs, and how it runs.

Donated arguments are gone afterwards, and a jitted function has no executable before.
"""

from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.plans.plan cimport Plan
from jaxmarshal._core.values.arguments cimport jm_table

# First step: a plan with the guard of the arguments in `table`, or None with a reason. The slot of
# an argument that is in the way of either step has the action REFUSED then, for `explain`.
cdef Plan draft_plan(Context context, jm_table* table, int* reason)

# Second step: how such a call is run. `xla_executable` is a loaded executable; `handlers` make its
# results; `kept` says for each constant and argument whether it is an input of the executable, and
# `shardings` how each input has to lie; `constants`, or None, go before the arguments. `table` is
# that of the first step. 0 with a reason where only the reference can make this call.
cdef bint complete_plan(
    Plan plan, jm_table* table, object xla_executable, object handlers, object kept,
    object shardings, list constants, int* reason
) except -1

# Both steps for an ExecuteReplicated.
cdef Plan make_plan(
    Context context, jm_table* table, object executable, list constants, int* reason
)

# After the reference has performed the call: have the placement of host arguments recorded too.
cdef int record_host_arguments(Plan plan, jm_table* table) except -1

# After that: have their data go into memory that calls use one after the other, where the devices
# share it.
cdef int reuse_host_arguments(Plan plan, jm_table* table) except -1
