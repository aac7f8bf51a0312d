/* Letting objects of an extension type be called without a tuple or a dict of arguments. */
#ifndef JAXMARSHAL_VECTORCALL_H
#define JAXMARSHAL_VECTORCALL_H

#include <Python.h>

/* Have objects of `type` be called by the vectorcallfunc they hold `offset` bytes from their start.
   With `is_method`, looking one up on an object and calling it makes no bound method: the object
   comes first among the arguments. To be called once, before the type has instances. */
static inline void jm_use_vectorcall(PyTypeObject *type, Py_ssize_t offset, int is_method) {
    type->tp_vectorcall_offset = offset;
    type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    if (is_method) type->tp_flags |= Py_TPFLAGS_METHOD_DESCRIPTOR;
    type->tp_call = PyVectorcall_Call;
    PyType_Modified(type);
}

#endif
