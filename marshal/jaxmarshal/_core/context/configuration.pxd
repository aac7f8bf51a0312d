"""The configuration a call runs under: the part of the guard that no argument shows.

A `Context` stands for one value of JAX's trace context (every configuration state on which the
reference's own caches depend: x64, default device, meshes, precision, ...) together with the
backend that was the default one. What was recorded hangs below it, so a changed configuration
finds other records or none.
"""

from cpython.object cimport PyObject

cdef class Context:
    cdef tuple words           # owned: the trace context; compared by pointer, then by equality
    cdef object backend        # owned: the default backend's client
    cdef readonly bint plain   # no trace in progress, nor profiles that guide compilation
    cdef readonly bint distributed    # several processes take part
    cdef object device_put_records    # what was recorded for `device_put`, or None
    cdef object shard_args_records    # what was recorded for `shard_args`, or None
    cdef object stage_records         # what was recorded for staging host data, or None
    cdef dict process_records         # and for data of this process, by global shape, or None
    cdef object operations            # how primitives are run: an `Operations`, or None
    cdef dict replays                 # calls of whole functions, to their steps, or None
    cdef bint plain_operations        # of `for_jit`: no manual axes, `jit` on
    cdef bint has_mesh                # of `for_jit`: is a mesh set, maybe one without devices?
    # This one with the states that jitted functions add.
    cdef Context for_jit              # with their values in the last such call, or None
    cdef list all_for_jit             # with other values too, the most recently made first

# The current context, or None where the reference must decide: a trace in progress, no backend, or
# listeners on JAX's internal events. `reason` receives a `counting.Reason`. Needs the GIL; returns
# an owned reference; raises only what JAX's state raises.
#
# In a `distributed` one, whoever places data does so on devices of this process alone: otherwise
# the reference's processes may talk to each other, and all of them have to.
cdef Context current_context(int* reason)

# Is it the current one still, or one of those that jitted functions have of it?
cdef bint is_current(Context context) except -1

# The same for a compiled executable, which depends neither on the default backend nor on listeners
# when it runs.
cdef Context running_context(int* reason)

# Is the value of a configuration state on this thread the object `expected`?
cdef bint state_is(object state, object expected) except -1

# Is a profile of JAX's own profiler in progress?
cdef bint is_profiling() except -1

# May transfers from the host (`host`) or between devices go unguarded on this thread?
cdef bint transfers_unguarded(bint host, bint device) except -1

# The same for data that the host fetches.
cdef bint fetches_unguarded() except -1

# Does anybody look at results on this thread: JAX's post-hook, debug_nans or debug_infs? The
# reference's C++ asks for the hook alone, its Python code for the two states.
cdef bint results_are_checked() except -1
