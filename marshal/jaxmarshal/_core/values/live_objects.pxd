"""Counters of live objects and of work per argument (debug build), shared by all modules."""

cdef extern from "jaxmarshal/counters.h":
    ctypedef struct jm_counters:
        long long live_slots
        long long live_tables
        long long live_heap
        long long live_plans
        long long classified
        long long buffers_read
    # Adds `by` to a field; nothing at all in a release build. Needs the GIL for consistency.
    void JM_COUNT(jm_counters* counters, ...) noexcept nogil
    int JM_DEBUG

# The one instance, alive as long as the process.
cdef jm_counters counters
