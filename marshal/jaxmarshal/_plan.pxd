"""Plans: a loaded executable with everything prepared, and the words that say when it applies.

A plan is recorded from a call that the reference has just performed and belongs to the object it
was recorded for (its *owner*: a Compiled, a MeshExecutable, an ExecuteReplicated or a jitted
function). It owns the executable's bound method, result handlers, constants and the guard's words,
and never an argument. It dies with its owner, on `jax.clear_caches()`, and when newer plans need
its place.
"""

from cpython.object cimport PyObject
from jaxmarshal._context cimport Context
from jaxmarshal._intake cimport jm_guard, jm_intake
from jaxmarshal._tree cimport Structure

cdef enum:
    PLANS_PER_OWNER = 16

cdef class Plan:
    cdef Context context        # the configuration it was recorded under; compared by pointer
    cdef Py_ssize_t positional  # how many arguments by position
    cdef Py_ssize_t keywords    # and by name
    cdef tuple names            # of those that are not static, sorted
    cdef list statics           # a StaticArgument for each static one, or None for none
    cdef bytes is_static        # then a flag for each argument by position
    cdef Structure arguments    # of the others, by position and then by name; unused if flat
    cdef bint runs_user_code    # comparing structures does: there are custom nodes
    cdef Py_ssize_t count       # leaves, constants not counted
    cdef jm_guard* guards       # owned heap block of `count`
    cdef Py_ssize_t inputs      # of the executable: constants and arguments that are kept
    cdef list constants         # owned: arrays that go before the arguments, or None
    cdef object execute         # bound method of the loaded executable
    cdef bint fails_as_jit      # what fails at run time is a ValueError, as in jaxlib's C++
    cdef list handlers          # of the results
    cdef Structure results      # of the tree of results; empty for a flat list
    cdef bint single            # it is one leaf
    cdef bint listed            # it is a list of leaves
    cdef long long used         # when it was last run, counted in runs of plans
    cdef object unflatten       # where only JAX can build that tree: makes it of the list, or None

# The plans of one owner, the most recently recorded first.
cdef class Plans:
    cdef list plans
    cdef int failures    # how often in a row no plan could be made
    cdef int skip        # calls to leave to the reference before the next attempt
    cdef int refusal     # the `_stats.Reason` of the last failure

# The plans of one owner, or None when it has none.
cdef Plans plans_of(object owner)

# Keep a plan for as long as `owner` lives; or, with None, note that none could be made because of
# `reason`, so that attempts become rarer. Raises what making a weak reference raises.
cdef int keep_plan(object owner, Plan plan, int reason) except -1

# The plans and one more; where there are too many, without the one that was not run for longest.
# A list of its own: another thread may be going through the old one.
cdef list with_plan(list plans, Plan plan)

# The same as `keep_plan` where the plans of an owner are at hand.
cdef int add_plan(Plans plans, Plan plan, int reason) except -1

# When every argument was taken: GUARD if host arguments have to pass a transfer guard, or HIT.
cdef int check_transfers(jm_intake* intake) except -1

# Run a plan when every argument was taken: a new reference to the list of results; or NULL with the
# intake's reason if transfers are guarded or an argument was deleted in the meantime, and nothing
# was run. Raises what jaxlib raises.
cdef PyObject* run(Plan plan, jm_intake* intake) except? NULL

# The tree of the results that `run` returned, a new reference; takes over that of the list.
# Raises what node constructors raise.
cdef PyObject* build_results(Plan plan, PyObject* results) except NULL

# Have `build_results` make trees of this structure. 0 where the plan has not as many results.
cdef bint set_results(Plan plan, object treedef) except -1
