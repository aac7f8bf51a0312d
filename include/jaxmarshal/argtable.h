/* The argument table: one slot an argument, filled in one pass. Later passes (choice of device,
   transfer, execution) read the slot and never look at the object's type again. Small calls use
   the inline slots, wide ones the heap; jm_table_free releases both, also when half filled. */
#ifndef JAXMARSHAL_ARGTABLE_H
#define JAXMARSHAL_ARGTABLE_H

#include <Python.h>
#include <stdlib.h>
#include <string.h>

#include "jaxmarshal/compat.h"
#include "jaxmarshal/counters.h"

#define JM_INLINE_SLOTS 4

typedef struct {
    PyObject *obj;    /* owned: the argument */
    void *buffer;     /* ARRAY: its runtime buffer, which `delete()` frees; NDARRAY: its data */
    PyObject *prefix; /* owned: its part of the caller's prefix tree, or NULL: one for all */
    PyObject *target; /* owned once resolved, or NULL: the record of where it goes */
    PyObject *plan;   /* owned once resolved, or NULL: what the guard found for this argument */
    PyObject *ready;  /* owned once prepared, or NULL: what goes to jaxlib in place of `obj` */
    int32_t number;       /* which argument it is, where a table holds only some of them */
    unsigned char kind;
    unsigned char action; /* what the entry point decided to do with it; 0 when undecided */
} jm_slot;

typedef struct {
    jm_slot *slots; /* `inline_slots` or a heap block of its own */
    Py_ssize_t count;
    Py_ssize_t capacity;
    jm_counters *counters; /* owned by module `live_objects` */
    jm_slot inline_slots[JM_INLINE_SLOTS];
} jm_table;

static inline void jm_table_init(jm_table *table, jm_counters *counters) {
    table->slots = table->inline_slots;
    table->count = 0;
    table->capacity = JM_INLINE_SLOTS;
    table->counters = counters;
    JM_COUNT(counters, live_tables, 1);
}

/* Room for one more slot. Returns 0, or -1 with MemoryError set; the table stays valid. */
static inline int jm_table_grow(jm_table *table) {
    Py_ssize_t capacity = table->capacity * 4;
    int inlined = table->slots == table->inline_slots;
    jm_slot *slots = (jm_slot *)realloc(inlined ? NULL : table->slots,
                                        (size_t)capacity * sizeof(jm_slot));
    if (slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (inlined) {
        memcpy(slots, table->inline_slots, (size_t)table->count * sizeof(jm_slot));
        JM_COUNT(table->counters, live_heap, 1);
    }
    table->slots = slots;
    table->capacity = capacity;
    return 0;
}

/* Append an argument; the table takes its own reference to `obj`. Returns 0 or -1 with an error. */
static inline int jm_table_push(jm_table *table, PyObject *obj, int kind, void *buffer,
                                PyObject *prefix) {
    jm_slot *slot;
    if (JM_UNLIKELY(table->count == table->capacity) && jm_table_grow(table) < 0) return -1;
    slot = &table->slots[table->count++];
    Py_INCREF(obj);
    slot->obj = obj;
    slot->buffer = buffer;
    Py_XINCREF(prefix);
    slot->prefix = prefix;
    slot->target = NULL;
    slot->plan = NULL;
    slot->ready = NULL;
    slot->number = -1;
    slot->kind = (unsigned char)kind;
    slot->action = 0;
    JM_COUNT(table->counters, live_slots, 1);
    return 0;
}

/* Drop what the guard found, so that the arguments can be resolved again. */
static inline void jm_table_unresolve(jm_table *table) {
    for (Py_ssize_t i = 0; i < table->count; i++) {
        jm_slot *slot = &table->slots[i];
        Py_CLEAR(slot->target);
        Py_CLEAR(slot->plan);
        Py_CLEAR(slot->ready);
        slot->action = 0;
    }
}

/* Release every argument; the table is empty afterwards and keeps its heap block, if any. */
static inline void jm_table_clear(jm_table *table) {
    for (Py_ssize_t i = 0; i < table->count; i++) {
        jm_slot *slot = &table->slots[i];
        Py_DECREF(slot->obj);
        Py_XDECREF(slot->prefix);
        Py_XDECREF(slot->target);
        Py_XDECREF(slot->plan);
        Py_XDECREF(slot->ready);
        JM_COUNT(table->counters, live_slots, -1);
    }
    table->count = 0;
}

/* Release every reference and the heap block, if any. The table may be initialised again. */
static inline void jm_table_free(jm_table *table) {
    jm_table_clear(table);
    if (table->slots != table->inline_slots) {
        free(table->slots);
        JM_COUNT(table->counters, live_heap, -1);
    }
    table->slots = table->inline_slots;
    JM_COUNT(table->counters, live_tables, -1);
}

#endif
