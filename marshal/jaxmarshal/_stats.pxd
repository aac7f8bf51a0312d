"""Hit and miss counts per entry point. Counting is one increment; needs the GIL."""

# Why a call went to the reference. Names, and what to do about each, are in `reasons.py`.
cdef enum Reason:
    HIT = 0
    UNSUPPORTED      # the entry point is not active with this JAX
    NOT_RECORDED     # nothing was recorded yet for such an argument
    OPTIONS          # an option of the call that only the reference handles
    TRACE            # a trace is in progress
    CONTEXT          # several processes, or axis names are bound
    GUARD            # a transfer guard is set
    PROFILER         # a profile is being taken
    HOOK             # a post-hook is set, for instance by debug_nans
    LISTENER         # somebody listens to JAX's internal test events
    TARGET           # a target that only the reference handles
    TREE             # a tree that only the reference handles
    UNKNOWN_TYPE     # an argument of a type that is not in the table
    TRACER
    REF
    KEY_ARRAY
    TOKEN
    LITERAL
    EXECUTABLE       # an executable that only the reference runs
    AVAL             # an argument's aval is not the recorded one
    SHARDING         # an argument's sharding is not the recorded one
    COMMITTED        # an argument's committed flag is not the recorded one
    LAYOUT           # an argument's data layout is not the default one
    DELETED          # the array was deleted or donated
    DTYPE            # a dtype that only the reference handles
    VALUE            # a value whose conversion may warn or fail
    HOST_LEAVES      # host arguments that jaxlib's C++ call places at less cost
    NO_BACKEND       # no backend is initialised yet
    REPLACED         # something of JAX's that the fast path goes past was replaced
    OBJECT_LAYOUT    # the words of the arguments cannot be vouched for
    REASON_COUNT

cdef enum:
    MAX_ENTRIES = 32
    MAX_REASONS = 40    # room for each `Reason`

ctypedef struct Entry:
    long long hits
    long long misses[MAX_REASONS]

cdef Entry entries[MAX_ENTRIES]

# A call that `explain` asks about goes the way of any other up to its decision, and no further:
# what it would count is raised there, as an `Answer`. Whatever a call changes before that (the
# back-off, pointers that are adopted) it leaves alone if `is_asked()`.
ctypedef struct Question:
    bint is_open
    unsigned long thread
    int entry

cdef Question question

cdef extern from *:
    unsigned long PyThread_get_thread_ident() noexcept

# Is the call on this thread one that is asked about?
cdef inline bint is_asked() noexcept:
    return question.is_open and question.thread == PyThread_get_thread_ident()

# Raise the answer, if it is this entry point that is asked about on this thread.
cdef int answer(int entry, int reason) except -1

# Call a function of the user's, whose own calls are not asked about.
cdef object call_aside(object function, object arg)

# A call of the entry point is about to take the fast path.
cdef inline int decided_to_hit(int entry) except -1:
    return answer(entry, HIT) if question.is_open else 0

# Count a call that goes to the reference. Where it is the first of its kind, it is logged, which
# may run a handler of the user's: nothing may be half-done when this is called. Raises only what
# is no Exception.
cdef inline int count_miss(int entry, int reason) except -1:
    if question.is_open:
        answer(entry, reason)
    entries[entry].misses[reason] += 1
    if entries[entry].misses[reason] == 1:
        first_miss(entry, reason)
    return 0

# Log the first miss of an entry point for a reason. Raises only what is no Exception.
cdef int first_miss(int entry, int reason) except -1

# The number of the entry point `name`, added when new. Raises when there are too many.
cdef int entry_number(str name) except -1

ctypedef struct Numbers:
    int jit
    int bind

# The numbers under which jitted functions and operations are counted. While a recorded call such as
# `x[0]` takes its steps, they are those of steps: `stats()` adds both up, and `steps` does not.
cdef Numbers numbers

# Set `numbers` for the time of such a call, or back.
cdef void count_steps(bint on) noexcept

# The reason that stands for an argument kind which only the reference handles.
cdef Reason reason_of_kind(int kind) noexcept

# Is it one of those?
cdef inline bint reason_is_about_a_kind(int reason) noexcept:
    return UNKNOWN_TYPE <= reason <= LITERAL
