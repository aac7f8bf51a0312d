/* Where the words of a live `ArrayImpl` are. Offsets are found by calibration (module `array_words`),
   never assumed; -1 means not confirmed, and the reader falls back to the public attribute.
   All readers borrow: the caller keeps the array alive, and nothing is ever written.
   What is known of runtime buffers holds for those of one client (a backend of the process), or of
   several whose samples said the same. */
#ifndef JAXMARSHAL_LAYOUT_H
#define JAXMARSHAL_LAYOUT_H

#include <Python.h>
#include <string.h>

#include "jaxmarshal/compat.h"

#define JM_MAX_LAYOUT_WORDS 8

/* The word that says of how many devices a runtime buffer has data: of one, in the buffer itself;
   of n, in a list of its own. */
#define JM_HELD_BY_ONE 2
#define JM_HELD_BY(n) (2 * (uintptr_t)(n) + 1)

typedef struct {
    int calibrated;          /* 0 until the first array was met */
    Py_ssize_t aval;         /* PyObject *, the public `aval` */
    Py_ssize_t dtype;        /* PyObject *, the public `dtype` */
    Py_ssize_t sharding;     /* PyObject *, the public `sharding` */
    Py_ssize_t committed;    /* one byte, the public `committed` */
    Py_ssize_t buffer;       /* the runtime buffer; NULL once delete()d, but not when donated */
    uintptr_t vtable;        /* first word of a runtime buffer of the known class; 0 if unknown */
    int layout_count;        /* words in a runtime buffer that are all NULL exactly when ... */
    Py_ssize_t layout_words[JM_MAX_LAYOUT_WORDS]; /* ... the data layout is the default one */
    Py_ssize_t held;         /* in a runtime buffer of one device: what holds the data; or -1. The
                                word before it says of how many devices the buffer has data here */
    uintptr_t held_vtable;   /* its first word, and ... */
    Py_ssize_t wrapped;      /* ... behind the PJRT C API: where it points to a plugin's handle, whose
                                first word points to what holds the data there; or -1 */
    uintptr_t wrapped_vtable; /* the first word of that */
    Py_ssize_t data;         /* the word that is NULL once the data were donated, of the last one */
} jm_array_layout;

/* Are the words known that the guard of a compiled call compares? */
static inline int jm_words_are_known(const jm_array_layout *layout) {
    return layout->aval >= 0 && layout->sharding >= 0 && layout->committed >= 0 &&
           layout->buffer >= 0;
}

static inline void *jm_word(const void *base, Py_ssize_t offset) {
    void *word;
    memcpy(&word, (const char *)base + offset, sizeof word);
    return word;
}

static inline int jm_byte(const void *base, Py_ssize_t offset) {
    return ((const unsigned char *)base)[offset];
}

/* Does the runtime buffer provably hold its data in the default layout? 0 means "not proven". */
static inline int jm_buffer_layout_is_default(const jm_array_layout *layout, const void *buffer) {
    uintptr_t different = (uintptr_t)jm_word(buffer, 0) ^ layout->vtable;
    int i = layout->layout_count;
    if (i == 0 || different) return 0;
    /* Two at a time: layouts are held by pointers with a control block. */
    for (; i >= 2; i -= 2) {
        different |= (uintptr_t)jm_word(buffer, layout->layout_words[i - 1]) |
                     (uintptr_t)jm_word(buffer, layout->layout_words[i - 2]);
    }
    if (i) different |= (uintptr_t)jm_word(buffer, layout->layout_words[0]);
    return different == 0;
}

/* What holds the data of a runtime buffer of the known class and client, or NULL where that is not
   known. A plugin's handle is read only if it is a plugin's of which that is known. Of several devices it is the first one's: the buffer then has a pointer to a list of them. An array
   whose devices are all those of other processes has nothing there: any word. */
static inline const void *jm_buffer_held(const jm_array_layout *layout, const void *buffer) {
    const void *held;
    uintptr_t count;
    if (layout->held < 0) return NULL;
    count = (uintptr_t)jm_word(buffer, layout->held - (Py_ssize_t)sizeof held);
    if (count != JM_HELD_BY_ONE && (count < JM_HELD_BY(2) || !(count & 1))) return NULL;
    held = jm_word(buffer, layout->held);
    if (held != NULL && count != JM_HELD_BY_ONE) held = jm_word(held, 0);
    if (held == NULL || (uintptr_t)jm_word(held, 0) != layout->held_vtable) return NULL;
    if (layout->wrapped < 0) return held;
    held = jm_word(held, layout->wrapped);
    if (held != NULL) held = jm_word(held, 0);
    if (held == NULL || (uintptr_t)jm_word(held, 0) != layout->wrapped_vtable) return NULL;
    return held;
}

/* Have its data been donated, or deleted through another array? 0 where that cannot be told. */
static inline int jm_buffer_is_donated(const jm_array_layout *layout, const void *buffer) {
    const void *held = jm_buffer_held(layout, buffer);
    return held != NULL && jm_word(held, layout->data) == NULL;
}

#endif
