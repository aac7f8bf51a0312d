"""The plans of jitted functions: whose they are, who shares them, and what drops them."""

from jaxmarshal._core.plans.call cimport StaticRule
from jaxmarshal._core.plans.plan cimport Plans

# The plans of a jitted function, and of all that share a cache of jaxlib with it: same function,
# same options. They do not own the function.
cdef class JitPlans(Plans):
    cdef object __weakref__
    cdef StaticRule rule     # None where no argument is static
    cdef object made_of      # weak reference to the function that was jitted, or None
    cdef tuple options       # by what jaxlib's cache knows it beside that, see `_options`
    # Which arguments a call may use up, as `flatten_call` numbers them; None for any of them.
    cdef frozenset donated
    cdef int leave           # misses before a plan is tried again
    # Signatures that jaxlib answered by itself: may JAX's Python function be asked?
    cdef dict known
    # Of a library's `filter_jit` that calls the function: plans for the calls of that, or None.
    cdef Plans filtered
    cdef bint takes_host     # for a front: host data among few arrays too, which C++ places better

# Accelerated functions: id of one -> [weak reference to it, for whom]. An entry may outlive its
# function where the stack was used up, until another function with this id takes its place.
cdef dict accelerated
cdef bint is_accelerated(object function) except -1

# The `PjitInfo` that JAX gave a jitted function, or None where it is of another origin.
cdef object jit_info_of(object function)

# Which arguments of a jitted function are static, or None for none.
cdef StaticRule static_rule_of(object function)

# The plans of a jitted function that is accelerated, made when it has none; else None.
cdef JitPlans plans_of_jitted(object function)

# Give a function that was just made its plans. It shares them with those that jaxlib has it share
# a cache with, which were made of the same function with the same options, and not before what
# `jax.clear_caches()` cleared.
cdef int give_shared_plans(object function) except -1

# Drop the plans of all that may share a cache of jaxlib with this function, which was cleared.
cdef int clear_plans(object function) except -1

cdef enum:
    FREE_FAILURES = 8    # to make a plan, in a row; then attempts become rarer

# jaxlib has learnt a signature of the functions that jit `function`: a plan can be made of it, now
# that it took a while anyway.
cdef int expect_more(object function) except -1

# Drop every plan, as `jax.clear_caches()` does.
cpdef forget_plans()

# What is jitted from now on shares nothing with what was jitted before.
cdef int forget_functions() except -1
