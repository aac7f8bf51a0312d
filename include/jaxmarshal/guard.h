/* What a plan wants of one argument, and the part of the comparison that needs no Python at all. */
#ifndef JAXMARSHAL_GUARD_H
#define JAXMARSHAL_GUARD_H

#include <Python.h>
#include <stdint.h>

#include "jaxmarshal/argtable.h"
#include "jaxmarshal/classify.h"
#include "jaxmarshal/layout.h"

/* Every pointer is owned by the guard, or NULL where there is nothing to compare. */
typedef struct {
    PyObject *aval;          /* by pointer, then by equality, which adopts the new pointer */
    PyObject *where;         /* arrays: the sharding, likewise; host data: where they are put */
    PyObject *impl;          /* KEY_ARRAY: its implementation; the rest is about its base array */
    int32_t input;           /* which of the executable's inputs it is; -1: pruned, it is none */
    unsigned char kind;      /* jm_kind of the recorded argument */
    unsigned char committed; /* the committed flag; 0 for host data */
    unsigned char donated;   /* host data: may the executable use up the array they become? */
} jm_guard;

/* Takes the arguments of one call, in order, and puts them into the executable's inputs. */
typedef struct jm_intake {
    const jm_array_layout *layout; /* of the plan's arrays; borrowed, never freed */
    PyTypeObject *array_type; /* ArrayImpl, borrowed */
    jm_guard *guard;          /* of the next argument */
    jm_guard *end;            /* after the last one */
    PyObject *tuple;          /* owned: the executable's inputs, or NULL */
    PyObject **inputs;        /* its items: owned references, NULL where not filled yet */
    jm_table *table;          /* slots of the arguments that took more than a look at their words */
    void *plan;               /* the Plan, borrowed */
    PyObject *found;          /* owned: the argument that did not pass, or NULL */
    int reason;               /* why it did not */
    /* Looks closer at an argument whose words did not match. 1: taken; 0: not what was recorded;
       -1 with an error set. May run Python code. */
    int (*look)(struct jm_intake *intake, PyObject *obj);
} jm_intake;

/* Take arguments as long as each is an array whose words are, pointer for pointer, those of its
   guard, with a live buffer in the default data layout that was not donated; returns how many were taken. There must be
   as many guards left. Runs no Python code. */
static inline Py_ssize_t jm_take_words(jm_intake *intake, PyObject *const *items, Py_ssize_t n) {
    const jm_array_layout *restrict words = intake->layout;
    PyTypeObject *const array_type = intake->array_type;
    PyObject **const inputs = intake->inputs;
    jm_guard *guard = intake->guard;
    Py_ssize_t i = 0;
    for (; i < n; i++, guard++) {
        PyObject *obj = items[i];
        const void *buffer;
        uintptr_t different;
        if (Py_TYPE(obj) != array_type || guard->kind != JM_ARRAY) break;
        buffer = jm_word(obj, words->buffer);
        different = (uintptr_t)jm_word(obj, words->aval) ^ (uintptr_t)guard->aval;
        different |= (uintptr_t)jm_word(obj, words->sharding) ^ (uintptr_t)guard->where;
        different |= (uintptr_t)((jm_byte(obj, words->committed) != 0) ^ guard->committed);
        if (buffer == NULL || different || !jm_buffer_layout_is_default(words, buffer)) break;
        if (jm_buffer_is_donated(words, buffer)) break;
        if (JM_LIKELY(guard->input >= 0)) {
            Py_INCREF(obj);
            inputs[guard->input] = obj;
        }
    }
    intake->guard = guard;
    JM_COUNT(intake->table->counters, classified, i);
    JM_COUNT(intake->table->counters, buffers_read, i);
    return i;
}

/* Take one argument: 1, 0 or -1 as `look`. */
static inline int jm_take(jm_intake *intake, PyObject *obj) {
    if (JM_LIKELY(jm_take_words(intake, &obj, 1))) return 1;
    return intake->look(intake, obj);
}

#endif
