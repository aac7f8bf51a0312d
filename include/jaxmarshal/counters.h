/* Counters of live objects and of work done per argument; they exist in the debug build only
   (JAXMARSHAL_DEBUG). One instance, owned by the module `live_objects`, is shared by all others. */
#ifndef JAXMARSHAL_COUNTERS_H
#define JAXMARSHAL_COUNTERS_H

#include <stdint.h>

typedef struct {
    int64_t live_slots;      /* argument slots that hold references */
    int64_t live_tables;     /* argument tables between init and free */
    int64_t live_heap;       /* heap blocks owned by tables and recorded structures */
    int64_t live_plans;      /* LeafPlan, TargetPlan and executable plans */
    int64_t classified;      /* arguments looked up in the type table */
    int64_t buffers_read;    /* buffer pointers read from arguments */
} jm_counters;

#ifdef JAXMARSHAL_DEBUG
#define JM_DEBUG 1
#define JM_COUNT(counters, field, by) ((counters)->field += (by))
#else
#define JM_DEBUG 0
#define JM_COUNT(counters, field, by) ((void)(counters))
#endif

#endif
