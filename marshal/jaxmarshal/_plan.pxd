"""Plans: a loaded executable with everything prepared, and the guard that says when it applies.

A plan is recorded from a call that the reference has just performed and belongs to the object it
was recorded for (its *owner*: a Compiled, a MeshExecutable or an ExecuteReplicated). It owns the
executable's bound method, result handlers, constants and the guard's words, and never an argument.
It dies with its owner, on `jax.clear_caches()`, and when newer plans need its place.
"""

from cpython.object cimport PyObject
from jaxmarshal._argtable cimport jm_slot, jm_table
from jaxmarshal._context cimport Context
from jaxmarshal._layout cimport jm_array_layout
from jaxmarshal._tree cimport Structure

cdef enum:
    PLANS_PER_OWNER = 8

cdef extern from "jaxmarshal/guard.h":
    ctypedef struct jm_guard:
        PyObject* aval
        PyObject* sharding
        PyObject* put
        PyObject* impl
        unsigned char kind
        unsigned char kept
        unsigned char committed
    bint jm_words_are_known(const jm_array_layout* layout) noexcept nogil
    Py_ssize_t jm_words_match_until(
        const jm_array_layout* layout, const jm_guard* guards, const jm_slot* slots,
        Py_ssize_t start, Py_ssize_t count
    ) noexcept nogil

cdef class Plan:
    cdef Context context        # the configuration it was recorded under; compared by pointer
    cdef Structure arguments    # of positional, then keyword arguments; unused for flat sequences
    cdef Py_ssize_t count       # arguments, constants not counted
    cdef jm_guard* guards       # owned heap block of `count`
    cdef Py_ssize_t inputs      # of the executable: constants and arguments that are kept
    cdef bint arrays_only       # the inputs are the arguments: all are arrays, none is pruned
    cdef list constants         # owned: arrays that go before the arguments, or None
    cdef object execute         # bound method of the loaded executable
    cdef list handlers          # of the results
    cdef Py_ssize_t failed_at   # the argument at which the guard last failed, or -1; for `explain`
    cdef Structure results      # of the tree of results; empty for a flat list
    cdef object unflatten       # where only JAX can build that tree: makes it of the list, or None

# The plans of one owner, the most recently used first.
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

# The guard: HIT if the arguments in `table` are what the plan wants, else a `_stats.Reason`.
# Resolves host arguments (`ready`, `plan`, `target` of their slots) and typed keys (`ready`, their
# base array, and its `buffer`); no other effect.
cdef int check(Plan plan, jm_table* table) except -1

# Where and why `check` last failed: (argument number or -1, recorded word, found word).
cdef tuple failed_words(Plan plan, jm_table* table, int reason)

# Run a plan whose guard has passed; the list of results, or None if an argument was deleted in the
# meantime and nothing was run. Raises what jaxlib raises.
cdef list run(Plan plan, jm_table* table)

# The tree of the results that `run` returned. Raises what node constructors raise.
cdef object build_results(Plan plan, list results)

# Have `build_results` make trees of this structure. 0 where the plan has not as many results.
cdef bint set_results(Plan plan, object treedef) except -1

# Make a plan for the arguments in `table`, before the reference performs the call, or return None
# with a reason where only the reference can run this executable with such arguments. `executable`
# is an ExecuteReplicated; `constants`, or None, go before the arguments. The slot of an argument
# that is in the way has the action REFUSED then, for `explain`.
cdef Plan make_plan(
    Context context, jm_table* table, object executable, list constants, int* reason
)

# After the reference has performed the call: have the placement of host arguments recorded too.
cdef int record_host_arguments(Plan plan, jm_table* table) except -1
