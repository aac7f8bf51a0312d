/* What an argument is, decided by its exact type: an open-addressing table keyed by type pointer. */
#ifndef JAXMARSHAL_CLASSIFY_H
#define JAXMARSHAL_CLASSIFY_H

#include <Python.h>

#include "jaxmarshal/compat.h"

typedef enum {
    JM_OTHER = 0,     /* not known here: a custom pytree node, a subclass, or no JAX type */
    JM_ARRAY,         /* jaxlib's ArrayImpl */
    JM_NDARRAY,       /* numpy.ndarray itself */
    JM_NP_SCALAR,     /* a numpy or ml_dtypes scalar type */
    JM_BOOL,          /* Python scalars */
    JM_INT,
    JM_FLOAT,
    JM_COMPLEX,
    JM_TRACER,
    JM_REF,           /* mutable array reference */
    JM_KEY_ARRAY,     /* typed PRNG keys */
    JM_TOKEN,
    JM_LITERAL,       /* TypedNdArray and the typed scalars */
    JM_NONE,          /* builtin containers; None is one without children */
    JM_LIST,
    JM_TUPLE,
    JM_DICT,
    JM_KIND_COUNT
} jm_kind;

/* Is it a leaf whose data lie on the host and have a fixed representation? */
static inline int jm_kind_is_host(int kind) { return kind >= JM_NDARRAY && kind <= JM_COMPLEX; }

/* Is it something that compiled code takes as an argument? Typed keys go as their base array. */
static inline int jm_kind_is_argument(int kind) {
    return (kind >= JM_ARRAY && kind <= JM_COMPLEX) || kind == JM_KEY_ARRAY;
}

#define JM_TYPE_TABLE_SIZE 512 /* a power of two, kept at most half full */

typedef struct {
    PyTypeObject *types[JM_TYPE_TABLE_SIZE]; /* owned references; NULL marks a free place */
    unsigned char kinds[JM_TYPE_TABLE_SIZE];
    int count;
} jm_type_table;

static inline size_t jm_type_place(const jm_type_table *table, PyTypeObject *type) {
    size_t i = ((uintptr_t)type >> 4) ^ ((uintptr_t)type >> 13);
    for (i &= JM_TYPE_TABLE_SIZE - 1; table->types[i] != NULL && table->types[i] != type;
         i = (i + 1) & (JM_TYPE_TABLE_SIZE - 1)) {
    }
    return i;
}

/* The kind of an exact type; JM_OTHER when it was never added. */
static inline int jm_kind_of_type(const jm_type_table *table, PyTypeObject *type) {
    size_t i = jm_type_place(table, type);
    return table->types[i] == NULL ? JM_OTHER : table->kinds[i];
}

/* Add or change a type. Takes its own reference. Returns 0, or -1 when the table is full. */
static inline int jm_type_table_set(jm_type_table *table, PyTypeObject *type, int kind) {
    size_t i = jm_type_place(table, type);
    if (table->types[i] == NULL) {
        if (table->count >= JM_TYPE_TABLE_SIZE / 2) return -1;
        Py_INCREF((PyObject *)type);
        table->types[i] = type;
        table->count++;
    }
    table->kinds[i] = (unsigned char)kind;
    return 0;
}

#endif
