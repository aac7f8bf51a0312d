"""Records of where arguments go, and the placing of host data by them.

What is recorded hangs below a `Context`: TargetPlan per target, LeafPlan per kind, dtype and shape
of a host argument. All of it comes from arrays the reference returned. Records own avals,
shardings, dtypes and devices, and never an argument.
"""

from cpython.object cimport PyObject
from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.placement.host_data cimport HostBuffer
from jaxmarshal._core.values.arguments cimport jm_slot, jm_table

# What an entry point decided to do with an argument.
cdef enum Action:
    UNDECIDED
    RETURN     # `ready` is set already
    PUT_HOST   # host data to the devices of the target
    WRAP       # an array on the target device: a new array on the same buffer
    COPY       # an array on another device of the same client
    MOVE       # an array to another sharding, as the reference's own shard_args does it
    CALL       # by the jitted function that the reference calls; see `reshard`
    REFUSED    # it is why no plan can be made
    KEPT       # a scalar of which a plan keeps an array
    REUSED     # host data in a HostBuffer, which is `ready`
    DONATED    # host data in an array that the executable may use up
    CUSTOM_LAYOUT    # an array whose data do not lie in the default layout

cdef enum:
    LEAF_TABLE = 256    # a power of two
    LEAF_PROBES = 4
    RECENT_TARGETS = 4
    KIND_COUNT = 32     # at least JM_KIND_COUNT
    MOST_REUSED = 32768    # bytes in a HostBuffer: copying more takes as long as what it saves

# What the reference makes of a host argument with this kind, dtype and shape.
cdef class LeafPlan:
    cdef int kind
    cdef object dtype          # owned: the argument's own dtype; compared by pointer
    cdef Py_ssize_t ndim
    cdef Py_ssize_t* dims      # owned heap block of `ndim` lengths, NULL for 0-d
    cdef object aval           # of the result
    cdef bint narrows          # the result's dtype is not the argument's
    cdef object result_dtype   # owned: numpy's, or None where the argument is a Python scalar
    cdef int typenum           # numpy's number of the result's dtype
    # Owned: of each shard its starts, then its lengths, one each a dimension; NULL where every
    # shard is the whole argument.
    cdef Py_ssize_t* shards
    cdef Py_ssize_t shard_count
    cdef int staged_by         # functions that only stage such data; see `array_from_host`
    cdef int watched           # how often one of them did something else

# Where arguments go for one target.
cdef class TargetPlan:
    cdef object target         # None, a Device, a Sharding or a PartitionSpec
    cdef object sharding       # of the results; where `target` is a sharding the caller's is used
    cdef bint is_sharding      # or a PartitionSpec
    cdef bint by_sharding      # `sharding` is equal to the target, and finds the record too
    cdef bint of_spec          # `sharding` is made of it and the mesh that is set
    cdef object committed      # of the results, a bool
    cdef list devices          # addressable ones, in the order of the shards
    cdef bint single           # there is one device
    cdef bint replicated       # every shard is the whole argument
    # Does the reference cut arrays first, and convert the parts? Otherwise it converts an array,
    # past its cache of converted arrays, and cuts what it got.
    cdef bint cuts_first
    cdef dict moves            # (token of the source's sharding, aval) -> aval of the moved array
    cdef PyObject* leaves[LEAF_TABLE]    # owned LeafPlans of arrays and numpy scalars, or NULL
    cdef PyObject* scalars[KIND_COUNT]   # owned LeafPlans of Python scalars, by kind

# All targets under one context.
cdef class Records:
    cdef bint distributed      # several processes take part
    # May targets be on devices of other processes too? Of such data the reference places the part
    # of this process, and does not ask the others.
    cdef bint takes_parts
    cdef bint cuts_first       # as in TargetPlan
    cdef TargetPlan default    # for target None
    cdef dict targets          # target, a spec with its mesh, -> TargetPlan, by equality
    cdef dict functions        # what the reference calls for an argument; see `reshard`
    cdef dict lists            # see `array_from_host`
    cdef int lists_learned     # how often one was learned
    cdef list recent           # TargetPlans whose target was seen last, compared by pointer
    cdef int next_recent

# All that was recorded for `device_put` under a context.
cdef Records records_of(Context context)

# All that was recorded for `shard_args` under a context: other avals, and always committed.
cdef Records shard_records_of(Context context)
cdef Records stage_records_of(Context context)

# All that was recorded for the parts that this process has of arrays of a global shape, which is a
# tuple, or None where the local shape decides.
cdef Records process_records_of(Context context, object global_shape)

# Record what the reference returned for the arguments in the table, whose targets are `target` or
# their prefixes. Failures leave them unrecorded; they raise in a debug build only. So does a
# context other than that of the records: meanwhile the user's code may have run, or other threads.
cdef int try_to_record(
    Context context, Records records, jm_table* table, object target, object result
) except -1

# Why there is no record for a target: NOT_RECORDED, or TARGET where there cannot be one, as for a
# PartitionSpec while no mesh is set; CONTEXT for one on devices of other processes.
cdef int why_not_found(Records records, object target) except -1

# The sharding that results for `target` have, the caller's own object where it is one.
cdef object sharding_for(TargetPlan plan, object target)

# Is it a dtype of plain numbers, ml_dtypes' included?
cdef bint is_numeric(object dtype) noexcept

# Is a numpy array or scalar one of numbers as JAX has them?
cdef bint is_ordinary_data(object x) except -1

# The record for a target, or None.
cdef TargetPlan find_target(Records records, object target)

# Find the LeafPlan of a host argument for a target, and the host array that goes to the device.
# HIT, or why the reference has to do it. No side effects but those that JAX's cache of converted
# arrays has. `direct`: does the reference hand an array to jaxlib as it is when there is one
# device, as jitted functions do, and not through that cache?
cdef int resolve_host(jm_slot* slot, TargetPlan target, bint direct=*) except -1

# Has a numpy array that was resolved the same shape and dtype still? What was converted then is
# converted anew, as its elements may have changed since. True of other arguments.
cdef bint resolve_again(jm_slot* slot) except -1

# Does the reference cut host data into shards in Python, as it does unless told otherwise?
cdef bint shards_in_python() except -1

# Put a resolved host argument on the devices of `target`, the caller's own object: a jax.Array.
cdef object put_host(jm_slot* slot, TargetPlan plan, object target, bint copy=*)

# May arguments that are resolved as this one go into a HostBuffer? Not if they are long, or to
# several devices, or to one with a memory of its own.
cdef bint shares_memory(jm_slot* slot, TargetPlan plan, object target) except -1

# Make one, where that is so.
cdef HostBuffer make_host_buffer(jm_slot* slot, TargetPlan plan, object target)

# Make sure that `device_put(x, target)` of a host argument is recorded; calls the reference if not.
# Silent, for the call it belongs to was made before. Failures, and a transfer guard, leave it
# unrecorded and raise nothing but BaseExceptions.
cdef int ensure_recorded(object x, int kind, object target, Context context) except -1
