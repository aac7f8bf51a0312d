/* Reading one of JAX's configuration states without creating an object.

   A state has a global value and possibly one value per thread. CPython's own traversal protocol
   (tp_traverse of the state's class) visits the class and every one of these values. If all of
   them are one and the same object, that is the value on this thread, whichever thread it is. */
#ifndef JAXMARSHAL_CONFIG_STATE_H
#define JAXMARSHAL_CONFIG_STATE_H

#include <Python.h>

typedef struct {
    PyObject *expected;
    PyObject *type;
    int seen;   /* values that are `expected` */
    int nones;  /* values that are None, and not expected */
    int others; /* all other values */
} jm_state_visit;

static int jm_state_visitor(PyObject *value, void *arg) {
    jm_state_visit *visit = (jm_state_visit *)arg;
    if (value == visit->expected) {
        visit->seen++;
    } else if (value == Py_None) {
        visit->nones++;
    } else if (value != visit->type) {
        visit->others++;
    }
    return 0;
}

/* Is every value of `state`, global and of any thread, the object `expected`? `traverse` is the
   tp_traverse of the C++ class behind `state`. Needs the GIL; borrows; cannot fail. */
static inline int jm_state_is_everywhere(traverseproc traverse, PyObject *state,
                                         PyObject *expected) {
    jm_state_visit visit = {expected, (PyObject *)Py_TYPE(state), 0, 0, 0};
    traverse(state, jm_state_visitor, &visit);
    return visit.seen > 0 && visit.nones == 0 && visit.others == 0;
}

/* The same for a state whose global value is None, which is that of every thread without one of its
   own: has each thread this value, or none? A thread that has set None makes it two. */
static inline int jm_state_is_in_threads(traverseproc traverse, PyObject *state,
                                         PyObject *expected) {
    jm_state_visit visit = {expected, (PyObject *)Py_TYPE(state), 0, 0, 0};
    traverse(state, jm_state_visitor, &visit);
    return visit.nones == 1 && visit.others == 0;
}

#endif
