"""Custom nodes whose flatten function does nothing but read the attributes of an instance.

Such is a class that a library registers with a function of its own, which it makes of a list of
names. Its instances are read and made here without that function.
"""

from cpython.object cimport PyObject
from jaxmarshal._core.values.static_values cimport StaticArgument

# How instances of one class are read.
cdef class Fields:
    cdef object cls          # the class
    cdef tuple dynamic        # the names of its children in order, interned
    cdef tuple static         # of further attributes, which the treedef has
    cdef tuple extra          # of those where an instance has more attributes than these
    cdef object missing       # stands for what an instance lacks
    cdef object check         # called with the class when that has changed: is it still so?
    cdef unsigned int version    # of the class when it was checked

# A node of a recorded tree.
cdef class FieldsNode:
    cdef Fields fields
    cdef bint has_extra       # more attributes than there are fields
    cdef tuple extra          # then, of the extra attributes: a StaticArgument each
    cdef tuple static         # a StaticArgument for each static field
    cdef tuple words          # what the treedef has: the extra attributes or `missing`, the static

# Fields of a class that the function `check` finds in order. Raises TypeError for wrong names.
cdef Fields make_fields(
    object cls, tuple dynamic, tuple static, tuple extra, object missing, object check
)

# A node with what its treedef has; one that is only made, and not compared, needs no hashes. Raises
# what hashing a static value raises.
cdef FieldsNode make_node(Fields fields, tuple words, bint is_compared)

# The attributes of an instance, a new reference; None if it is no instance of just that class,
# or the class is not what it was.
cdef object attributes_of_node(FieldsNode node, PyObject* obj)

# The value of a name among them, borrowed.
cdef PyObject* field_value(FieldsNode node, object attributes, object name) except NULL

# A new instance; `children` are in the order of the dynamic names.
cdef object make_instance(FieldsNode node, tuple children)
