"""Hit and miss counts per entry point. Counting is one increment; needs the GIL.

A call that programs make may lead to others: the steps of a recorded one, or what the reference
calls. These count under numbers of their own, so that a report can leave them out.
"""

from cpython.object cimport PyObject

from jaxmarshal._core.values.capi cimport PyThread_get_thread_ident

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
    INNER = MAX_ENTRIES    # added to the number of an entry point: calls inside of other calls
    NAMED = 2 * MAX_ENTRIES    # the numbers from here on are those of single functions
    MAX_OF_PROGRAMS = 4096     # so many of them may be functions that programs define
    MAX_NAMED = MAX_OF_PROGRAMS + 1024
    NOBODY = NAMED + MAX_NAMED    # the number of what no program called; never read
    MAX_REASONS = 40    # room for each `Reason`

ctypedef struct Entry:
    long long hits
    long long misses[MAX_REASONS]

cdef Entry entries[2 * MAX_ENTRIES + MAX_NAMED + 1]

# How many calls are being performed by the reference or step by step now, in all threads.
cdef int performed

# The same number, or with INNER where a call of this thread is being performed, or NOBODY.
cdef int number_inside(int entry) noexcept

# Under which number a call of an entry point counts.
cdef inline int number_now(int entry) noexcept:
    return entry if not performed else number_inside(entry)

# What this thread calls until `leave` is inside of a call that has been counted.
cdef void enter() noexcept
cdef void leave() noexcept

# A call that `explain` asks about goes the way of any other up to its decision, and no further:
# what it would count is raised there, as an `Answer`. Whatever a call changes before that (the
# back-off, pointers that are adopted) it leaves alone if `is_asked()`.
ctypedef struct Question:
    bint is_open
    unsigned long thread
    int entry

cdef Question question

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

# Count a call that takes the fast path.
cdef inline void count_hit(int entry) noexcept:
    entries[number_now(entry)].hits += 1

# The same of one of the functions that share an entry point, under whose own counts calls inside of
# others do not count.
cdef inline void count_hit_of(int entry, Entry* function) noexcept:
    cdef int number = number_now(entry)
    entries[number].hits += 1
    if number == entry:
        function.hits += 1

# Count a call that goes to the reference. Where it is the first of its kind, it is logged, which
# may run a handler of the user's: nothing may be half-done when this is called. Raises only what
# is no Exception.
cdef inline int count_miss(int entry, int reason) except -1:
    cdef long long* misses = &entries[number_now(entry)].misses[reason]
    if question.is_open:
        answer(entry, reason)
    misses[0] += 1
    if misses[0] == 1:
        first_miss(entry, reason)
    return 0

cdef inline int count_miss_of(int entry, Entry* function, int reason) except -1:
    count_miss(entry, reason)
    if number_now(entry) == entry:
        function.misses[reason] += 1
    return 0

# The same where such a miss was counted before: nothing is logged.
cdef inline void count_another_miss_of(int entry, Entry* function, int reason) noexcept:
    cdef int number = number_now(entry)
    entries[number].misses[reason] += 1
    if number == entry:
        function.misses[reason] += 1

# Log the first miss of an entry point for a reason. Raises only what is no Exception.
cdef int first_miss(int entry, int reason) except -1

# Call the reference for a call that was counted: a new reference, or NULL with its error.
cdef PyObject* perform(
    PyObject* reference, PyObject** args, size_t nargsf, PyObject* names
) noexcept

# The number of the entry point `name`, added when new. Raises when there are too many.
cdef int entry_number(str name) except -1

# The number of one of the functions that share the entry point `entry`, as programs write it; added
# when new. Raises when there are too many.
cdef int named_number(str entry, str written) except -1

# The counts of a function that a program defines and has jitted or compiled: those of all that bear
# this name. Where there are too many functions, those that are never read.
cdef Entry* counts_of_program(str entry, str written) except NULL

# The reason that stands for an argument kind which only the reference handles.
cdef Reason reason_of_kind(int kind) noexcept

# Is it one of those?
cdef inline bint reason_is_about_a_kind(int reason) noexcept:
    return UNKNOWN_TYPE <= reason <= LITERAL
