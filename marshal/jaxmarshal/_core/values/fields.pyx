"""Reading and making instances by the names of their fields."""

import sys

from cpython.dict cimport PyDict_Size
from cpython.object cimport PyObject, PyTypeObject

from jaxmarshal._core.values.capi cimport PyDict_GetItemWithError, PyObject_GenericGetDict
from jaxmarshal._core.values.kinds cimport Py_TYPE
from jaxmarshal._core.values.static_values cimport make_static_part

cdef extern from "jaxmarshal/compat.h":
    unsigned int jm_class_version(PyTypeObject* type) noexcept

cdef extern from *:
    """
    static inline PyObject *jm_new_object(PyTypeObject *cls, PyObject *no_arguments) {
        return PyBaseObject_Type.tp_new(cls, no_arguments, NULL);
    }
    """
    object jm_new_object(PyTypeObject* cls, object no_arguments)
    int PyObject_GenericSetAttr(object obj, object name, object value) except -1


cdef class Fields:
    pass


cdef class FieldsNode:
    pass


cdef Fields make_fields(
    object cls, tuple dynamic, tuple static, tuple extra, object missing, object check
):
    cdef Fields fields = Fields()
    fields.cls = cls
    fields.dynamic = tuple([sys.intern(name) for name in dynamic])
    fields.static = tuple([sys.intern(name) for name in static])
    fields.extra = tuple([sys.intern(name) for name in extra])
    fields.missing = missing
    fields.check = check
    return fields


cdef FieldsNode make_node(Fields fields, tuple words, bint is_compared):
    cdef FieldsNode node = FieldsNode()
    node.fields = fields
    node.words = words
    node.has_extra = words[0] is not fields.missing
    # What makes one function look like another: annotations are a dict.
    node.extra = tuple([
        make_static_part(value, False) for value in (words[0] if node.has_extra else ())
    ])
    node.static = tuple([make_static_part(value, is_compared) for value in words[1:]])
    return node


cdef bint _is_as_checked(Fields fields) except -1:
    cdef unsigned int version = jm_class_version(<PyTypeObject*>fields.cls)
    if version and version == fields.version:
        return True
    if not fields.check(fields.cls):    # looks names up, after which the class has a version
        return False
    fields.version = jm_class_version(<PyTypeObject*>fields.cls)
    return True


cdef object attributes_of_node(FieldsNode node, PyObject* obj):
    cdef Fields fields = node.fields
    if <PyObject*>Py_TYPE(obj) != <PyObject*>fields.cls or not _is_as_checked(fields):
        return None
    attributes = PyObject_GenericGetDict(<object>obj, NULL)
    count = len(fields.dynamic) + len(fields.static)
    return attributes if (PyDict_Size(attributes) != count) == node.has_extra else None


cdef PyObject* field_value(FieldsNode node, object attributes, object name) except NULL:
    cdef PyObject* value = PyDict_GetItemWithError(attributes, name)
    return <PyObject*>node.fields.missing if value == NULL else value


cdef object make_instance(FieldsNode node, tuple children):
    cdef Fields fields = node.fields
    cdef Py_ssize_t i
    made = jm_new_object(<PyTypeObject*>fields.cls, ())
    for i in range(len(children)):
        if children[i] is not fields.missing:
            PyObject_GenericSetAttr(made, fields.dynamic[i], children[i])
    if node.has_extra:
        attributes = PyObject_GenericGetDict(made, NULL)
        for i in range(len(fields.extra)):
            attributes[fields.extra[i]] = node.words[0][i]
    for i in range(len(fields.static)):
        if node.words[i + 1] is not fields.missing:
            PyObject_GenericSetAttr(made, fields.static[i], node.words[i + 1])
    return made
