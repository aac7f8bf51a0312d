/* Jitted functions of jaxlib as vectorcall objects: the function pointer of one object, and the list
   in which jaxlib keeps all of them. */
#ifndef JAXMARSHAL_JITTED_H
#define JAXMARSHAL_JITTED_H

#include <Python.h>

/* Where `function` keeps the pointer it is called by, as its type publishes it. */
static inline vectorcallfunc *jm_vectorcall_of(PyObject *function) {
    return (vectorcallfunc *)((char *)function + Py_TYPE(function)->tp_vectorcall_offset);
}

/* The word at `offset` of an object. */
static inline PyObject *jm_object_at(PyObject *object, Py_ssize_t offset) {
    return *(PyObject **)((char *)object + offset);
}

/* jaxlib links all functions of this type, the newest first. The offset of the link to the next
   older one, read off three functions that were made one after the other; -1 where none or several
   places fit. Needs the GIL; cannot fail. */
static inline Py_ssize_t jm_find_link(PyObject *oldest, PyObject *middle, PyObject *newest) {
    const Py_ssize_t size = Py_TYPE(newest)->tp_basicsize;
    Py_ssize_t found = -1;
    for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof(PyObject *) <= size;
         at += sizeof(PyObject *)) {
        if (jm_object_at(newest, at) == middle && jm_object_at(middle, at) == oldest) {
            if (found >= 0) return -1;
            found = at;
        }
    }
    return found;
}

#endif
