"""What is recorded of primitives, found by the primitive and the values of its parameters.

Only parameters that are plain values are known: numbers, texts, None, dtypes, tuples of these, and
a few classes of JAX's that own nothing else. Each is recognised by its exact type before anything
is done with it, so that nobody's `__hash__` or `__eq__` runs here and nothing is kept alive that
could own an array. Values are the same only if their types are: 1, 1.0 and True are three.
"""

from cpython.object cimport PyObject

from jaxmarshal._core.context.bypassed cimport Attributes
from jaxmarshal._core.plans.jit_plans cimport JitPlans

# How a primitive with certain parameters is run in one context.
cdef class Operation:
    cdef size_t hashed
    cdef object prim            # owned: a primitive is alive as long as what JAX compiled for it
    cdef Attributes attributes  # that the primitive had
    cdef tuple names            # of the parameters, interned; as the caller gave them
    cdef tuple values           # plain ones
    cdef object function        # a weak reference to the jitted function that it comes to, or None
    cdef JitPlans plans         # of that function, or None
    cdef bint direct            # it comes to calling the implementation

# All that is known in one context; a hash table, which owns its operations.
cdef class Operations:
    cdef PyObject** slots
    cdef size_t size
    cdef Py_ssize_t count
    cdef Py_ssize_t refused    # how many found no room since there was some

# A hash of a primitive and its parameters, whose values start at `values`; 0 where one of them is
# no plain value. Needs the GIL; runs no code of users.
cdef size_t hash_operation(PyObject* prim, PyObject* names, PyObject** values) noexcept

# The operation, borrowed, or NULL.
cdef PyObject* find_operation(
    Operations operations, size_t hashed, PyObject* prim, PyObject* names, PyObject** values
) noexcept

# Is an operation with this hash to be kept? Where many are known, it has to come a second time.
cdef bint is_operation_wanted(Operations operations, size_t hashed) noexcept

# Keep one, whose `hashed` is set. Where too many find no room, all others are forgotten.
cdef int keep_operation(Operations operations, Operation operation) except -1
