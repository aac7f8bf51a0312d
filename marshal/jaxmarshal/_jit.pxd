"""Jitted functions: the reference's, with plans in front of them."""

from cpython.object cimport PyObject

from jaxmarshal._call cimport StaticRule
from jaxmarshal._context cimport Context
from jaxmarshal._method cimport vectorcallfunc
from jaxmarshal._plan cimport Plans

# The plans of all jitted functions that share a cache of jaxlib: same function, same options.
cdef class JitPlans(Plans):
    cdef object __weakref__
    cdef StaticRule rule     # None where no argument is static
    cdef int missed          # calls in a row that no plan fitted
    cdef int leave           # calls of the recorder before it tries to make a plan again

# Stands in for the function that jaxlib calls when it does not know a call's signature.
cdef class Recorder:
    cdef vectorcallfunc vectorcall
    cdef object original     # the reference's function
    cdef JitPlans plans

# Behaves as the jitted function it holds.
cdef class PjitFunction:
    cdef vectorcallfunc vectorcall
    cdef int by_install      # made because an entry point was installed: which, or 0
    cdef object inner        # the reference's jitted function, with a Recorder
    cdef Recorder recorder
    cdef JitPlans plans
    cdef object __weakref__

# The current context with the states that jitted functions depend on and it lacks; None with a
# reason where the reference must decide.
cdef Context jit_context(int* reason)
