/* Handing a call over to the reference at the least cost. */
#ifndef JAXMARSHAL_CALL_H
#define JAXMARSHAL_CALL_H

#include <Python.h>

#define JM_MOST_STACK_ARGS 6

/* function(self, *args, **kwargs): a new reference, or NULL with the function's error. `kwargs` is
   a dict or NULL; everything is borrowed. */
static inline PyObject *jm_call_with_self(PyObject *function, PyObject *self, PyObject *args,
                                          PyObject *kwargs) {
    PyObject *stack[JM_MOST_STACK_ARGS + 2]; /* the first place is for the callee's use */
    Py_ssize_t n = PyTuple_GET_SIZE(args);
    PyObject *all, *result;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) == 0) kwargs = NULL;
    if (n <= JM_MOST_STACK_ARGS) {
        stack[1] = self;
        for (Py_ssize_t i = 0; i < n; i++) stack[i + 2] = PyTuple_GET_ITEM(args, i);
        return PyObject_VectorcallDict(function, stack + 1,
                                       (size_t)(n + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, kwargs);
    }
    all = PyTuple_New(n + 1);
    if (all == NULL) return NULL;
    Py_INCREF(self);
    PyTuple_SET_ITEM(all, 0, self);
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_INCREF(PyTuple_GET_ITEM(args, i));
        PyTuple_SET_ITEM(all, i + 1, PyTuple_GET_ITEM(args, i));
    }
    result = PyObject_Call(function, all, kwargs);
    Py_DECREF(all);
    return result;
}

#endif
