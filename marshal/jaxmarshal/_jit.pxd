"""Jitted functions: the reference's, with plans in front of them."""

from jaxmarshal._jit_record cimport JitPlans, Recorder
from jaxmarshal._method cimport vectorcallfunc

# Behaves as the jitted function it holds.
cdef class PjitFunction:
    cdef vectorcallfunc vectorcall
    cdef int by_install      # made because an entry point was installed: which, or 0
    cdef object inner        # the reference's jitted function, with a Recorder
    cdef Recorder recorder
    cdef JitPlans plans
    cdef object __weakref__
