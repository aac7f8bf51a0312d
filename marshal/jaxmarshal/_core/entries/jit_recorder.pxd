"""Making plans of jitted functions."""

from cpython.object cimport PyObject

from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.plans.call cimport Call
from jaxmarshal._core.plans.jit_plans cimport JitPlans
from jaxmarshal._core.plans.plan cimport Plan
from jaxmarshal._core.values.arguments cimport jm_table
from jaxmarshal._core.values.methods cimport vectorcallfunc

# A plan for the arguments, which go into `table`, without what jaxlib makes of them; or None with
# a reason.
cdef Plan draft_jit_plan(
    JitPlans plans, Call* call, Context context, jm_table* table, int* reason
)

# Count a miss and call a jitted function as `reference` does, the pointer it had from jaxlib; make
# a plan of what jaxlib keeps of the call. A new reference, or NULL with the reference's error set.
cdef PyObject* call_and_record(
    PyObject* function, vectorcallfunc reference, JitPlans plans, Context context, Call* call,
    int entry, int reason
) except? NULL
# See `errors`.
ctypedef PyObject* (*call_and_record_function)(
    PyObject*, vectorcallfunc, JitPlans, Context, Call*, int, int
) noexcept
