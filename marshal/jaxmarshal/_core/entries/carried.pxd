"""What a carry hands from call to call, and the call itself, as far as it is the same every time.

The rest of both is in Python, in `packing`: `Packed` and `Carry` are their only subclasses.
"""

from jaxmarshal._core.values.methods cimport vectorcallfunc

cdef class Carried:
    cdef public object _children    # a tuple: the buffers, then the loose leaves; None once donated
    cdef public object _plan        # where each leaf is
    cdef public object _key         # what a carry finds its executable by; None until it is known
    cdef object __weakref__

cdef class CarryCall:
    cdef vectorcallfunc implementation
    cdef readonly dict _runs        # key of a `Carried` -> its compiled function, and others
    cdef tuple _last                # the last key that was met here, and its compiled function
    cdef readonly bint _donate      # is a `Carried` consumed by a call?
    cdef bint _direct               # does a compiled function take the arguments of the call?
    cdef object _type               # that of what is carried
    cdef object _explain            # (children, error): raises another error if there is a reason
