"""Plans: a loaded executable with everything prepared, and the words that say when it applies.

A plan is recorded from a call that the reference has just performed and belongs to the object it
was recorded for (its *owner*: a Compiled, a MeshExecutable, an ExecuteReplicated or a jitted
function). It owns the executable's bound method, result handlers, constants and the guard's words,
and never an argument. It dies with its owner, on `jax.clear_caches()`, and when newer plans need
its place.
"""

from cpython.object cimport PyObject
from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.plans.intake cimport jm_guard, jm_intake
from jaxmarshal._core.values.arguments cimport jm_slot
from jaxmarshal._core.values.array_words cimport jm_array_layout
from jaxmarshal._core.values.kinds cimport JM_BOOL, JM_FLOAT, JM_INT
from jaxmarshal._core.values.trees cimport Structure
from jaxmarshal._reports.counting cimport Entry, NOT_RECORDED
from libc.stdint cimport uint64_t

cdef class Plan:
    cdef Context context        # the configuration it was recorded under; compared by pointer
    cdef Py_ssize_t positional  # how many arguments by position
    cdef Py_ssize_t keywords    # and by name
    cdef tuple names            # of those that are not static, sorted
    cdef list statics           # a StaticArgument for each static one, or None for none
    cdef bytes is_static        # then a flag for each argument by position
    cdef uint64_t signature     # a number that all calls have which it fits, see `signature`
    cdef Structure arguments    # of the others, by position and then by name; unused if flat
    cdef bint runs_user_code    # comparing structures does: there are custom nodes
    cdef bint asks_statics      # comparing static arguments does: their equality is their own
    cdef bint filtered          # arrays alone are leaves: numbers of Python are static
    cdef bint dropped           # what it was made from is not valid any more
    cdef Py_ssize_t count       # leaves, constants not counted
    cdef jm_guard* guards       # owned heap block of `count`
    cdef const jm_array_layout* words    # of its arrays; never freed; NULL where there are none
    cdef Py_ssize_t inputs      # of the executable: constants and arguments that are kept
    cdef list constants         # owned: arrays that go before the arguments, or None
    cdef object execute         # bound method of the loaded executable
    cdef bint keeps_scalars     # may arrays made of Python scalars be used again, unless donated?
    cdef bint reuses            # may host arguments go into a HostBuffer, unless donated?
    # What is neither kept nor in a HostBuffer is better placed by jaxlib's C++: scalars, or all.
    cdef bint only_kept, only_reused
    cdef bint asks_results      # is it asked at once if a call is over, or when the next one comes?
    cdef int chosen             # the number of the result that is asked then
    cdef int made               # HostBuffers since one was free
    cdef int not_made           # calls that could have made one
    cdef dict scalars           # number of a guard -> what `plan` knows of it, or None
    cdef bint fails_as_jit      # what fails at run time is a ValueError, as in jaxlib's C++
    cdef list handlers          # of the results
    cdef Structure results      # of the tree of results; empty for a flat list
    cdef bint single            # it is one leaf
    cdef bint listed            # it is a list of leaves
    cdef long long used         # when it was last run, counted in runs of plans
    cdef object unflatten       # where only JAX can build that tree: makes it of the list, or None

# The plans of one owner, the most recently recorded first.
cdef class Plans:
    cdef list plans      # replaced, and never changed: another thread may go through it
    cdef list indexed    # what the following two were made of; made again when it is not `plans`
    cdef dict index      # signature -> those plans that have it
    cdef bint asks_user_code    # does matching one of them ask custom nodes or static arguments?
    cdef Plan latest     # the one that fitted last, where there are many
    cdef int failures    # how often in a row no plan could be made
    cdef int missed      # calls in a row that no plan fitted
    cdef int skip        # calls to leave to the reference before the next attempt
    cdef int skipped     # how many those were the last time
    cdef int refusal     # the `counting.Reason` of the last failure
    cdef Entry* counts   # of calls of the function that its owner was made of; see `name_counts`
    cdef bint is_named   # do the counts stand under a name? Else they are never read

# Have calls of the owner count under what `written` says of it, from now on. It is asked once.
cdef int name_counts(Plans plans, str entry, object written, object owner) except -1

# The plans of one owner, or None when it has none.
cdef Plans plans_of(object owner)

# Why the reference performs a call that no plan fitted, where `plan` was made of it or, with None,
# could not be made because of `refused`.
cdef inline int reason_of_miss(Plan plan, int refused, int reason) noexcept:
    return refused if plan is None and reason == NOT_RECORDED else reason

# Is it the kind of a Python scalar that can be kept?
cdef inline bint is_scalar(int kind) noexcept:
    return kind == JM_BOOL or kind == JM_INT or kind == JM_FLOAT

# May an array of this argument be kept?
cdef inline bint is_kept(Plan plan, jm_slot* slot) noexcept:
    return plan.keeps_scalars and is_scalar(slot.kind) and not plan.guards[slot.number].donated

# Does the plan keep an array of the scalar that this argument is? Then that is what goes to the
# executable, and nothing is looked up or converted.
cdef bint take_kept_scalar(Plan plan, jm_slot* slot) except -1

# How many plans are kept of one owner: as many executables as jaxlib itself keeps.
cdef Py_ssize_t most_plans

# No plan fitted a call, for this reason: after more than `some` such calls in a row, calls go past
# the plans for a while, which grows. Where numbers are in the way both are as `plan` has them.
cdef int nothing_fitted(Plans plans, int reason, int some) noexcept

# Plans may fit again: calls do not go past them.
cdef inline void start_afresh(Plans plans) noexcept:
    plans.missed = plans.skip = plans.skipped = 0

# A plan fitted a call.
cdef inline void it_fitted(Plans plans) noexcept:
    if plans.missed:
        plans.missed -= 1
        if not plans.missed:
            plans.skipped = 0

# Have a plan run the executable of another one under the same guards.
cdef int run_the_same(Plan plan, Plan other) except -1

# Keep a plan for as long as `owner` lives; or, with None, note that none could be made because of
# `reason`, so that attempts become rarer. Raises what making a weak reference raises.
cdef int keep_plan(object owner, Plan plan, int reason) except -1

# Have these be the plans of `owner` for as long as it lives. Raises what making a weak reference
# raises.
cdef int give_plans(object owner, Plans plans) except -1

# Have one more plan; where there are too many, without those that were not run for longest.
cdef int take_plan(Plans plans, Plan plan) except -1

# Have these plans and no others. Those dropped for none do not run any more, not even in a call
# that has found one already.
cdef int set_plans(Plans plans, list chosen) except -1

# Make the index of plans anew, which is due when they are others than those it was made of.
cdef int make_index(Plans plans) except -1

# The same as `keep_plan` where the plans of an owner are at hand.
cdef int add_plan(Plans plans, Plan plan, int reason) except -1

# An error was reported, in a call that jaxlib's C++ performs in the reference: raise it as that
# does, for which a failure of the runtime is a ValueError.
cdef int raise_as_jit() except -1

# When every argument was taken: GUARD if host arguments have to pass a transfer guard, or HIT.
cdef int check_transfers(jm_intake* intake) except -1

# Run a plan when every argument was taken: a new reference to the list of results; or NULL with the
# intake's reason if transfers are guarded or an argument was deleted in the meantime, and nothing
# was run. `entry` is the entry point that counts the hit. Raises what jaxlib raises.
cdef PyObject* run_plan(Plan plan, jm_intake* intake, int entry) except? NULL
ctypedef PyObject* (*run_plan_function)(Plan, jm_intake*, int) noexcept    # see `errors`

# The tree of the results that `run_plan` returned, a new reference; takes over that of the list.
# Raises what node constructors raise.
cdef PyObject* build_results(Plan plan, PyObject* results) except NULL

# Have `build_results` make trees of this structure. 0 where the plan has not as many results.
cdef bint set_results(Plan plan, object treedef) except -1

# How many jitted functions are being compiled for the first time and will run what they compiled by
# way of these entry points, once: nothing is recorded of that.
cdef int compiling
