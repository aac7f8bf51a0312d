/* What a plan wants of one argument, and the part of the comparison that needs no Python at all. */
#ifndef JAXMARSHAL_GUARD_H
#define JAXMARSHAL_GUARD_H

#include <Python.h>

#include "jaxmarshal/argtable.h"
#include "jaxmarshal/classify.h"
#include "jaxmarshal/layout.h"

/* Every pointer is owned by the guard, or NULL where there is nothing to compare. */
typedef struct {
    PyObject *aval;          /* by pointer, then by equality, which adopts the new pointer */
    PyObject *sharding;      /* likewise; NULL for host data */
    PyObject *put;           /* host data: the target they are placed on */
    PyObject *impl;          /* KEY_ARRAY: its implementation; the rest is about its base array */
    unsigned char kind;      /* jm_kind of the recorded argument */
    unsigned char kept;      /* does it go to the executable? others were pruned */
    unsigned char committed; /* the committed flag; 0 for host data */
} jm_guard;

/* Can words be compared at all? Otherwise every argument takes the long way. */
static inline int jm_words_are_known(const jm_array_layout *layout) {
    return layout->aval >= 0 && layout->sharding >= 0 && layout->committed >= 0 &&
           layout->buffer >= 0 && layout->layout_count > 0;
}

/* Is the argument in `slot` an array whose words are, pointer for pointer, those of the guard, with
   a live buffer in the default data layout? 0 says nothing: the caller looks closer. Needs
   jm_words_are_known. Borrows everything. The buffer is read anew: Python code that ran since the
   slot was filled, for another argument, may have deleted this one. */
static inline int jm_words_match(const jm_array_layout *layout, const jm_guard *guard,
                                 const jm_slot *slot) {
    const void *array = slot->obj, *buffer;
    return slot->kind == JM_ARRAY && guard->kind == JM_ARRAY &&
           jm_word(array, layout->aval) == (void *)guard->aval &&
           jm_word(array, layout->sharding) == (void *)guard->sharding &&
           (jm_byte(array, layout->committed) != 0) == guard->committed &&
           (buffer = jm_word(array, layout->buffer)) != NULL &&
           jm_buffer_layout_is_default(layout, buffer);
}

/* The first argument from number `from` on whose words do not match, or `count`. */
static inline Py_ssize_t jm_words_match_until(const jm_array_layout *layout, const jm_guard *guards,
                                              const jm_slot *slots, Py_ssize_t from,
                                              Py_ssize_t count) {
    const jm_array_layout words = *layout; /* a copy, which the compiler knows not to change */
    Py_ssize_t i = from;
    while (i < count && jm_words_match(&words, &guards[i], &slots[i])) i++;
    return i;
}

#endif
