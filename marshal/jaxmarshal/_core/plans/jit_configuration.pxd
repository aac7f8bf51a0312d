"""The context of jitted functions, and of operations outside of them."""

from jaxmarshal._core.context.configuration cimport Context

# The current context with the states that jitted functions depend on and it lacks; None with a
# reason where the reference must decide.
cdef Context jit_context(int* reason)

# The same for host data that go to the default device: None under a mesh with manual axes too, and
# with jit disabled.
cdef Context staging_context(int* reason)

# The same for operations one by one: None where several processes take part, too.
cdef Context operation_context(int* reason)
