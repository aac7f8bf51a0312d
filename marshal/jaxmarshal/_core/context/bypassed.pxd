"""What a fast path goes past, and whether it still is what it was made for.

A recorded call skips functions, methods and tables of JAX. Programs and tests replace those
(`mock.patch` does). So the dicts they are found in are watched: modules, classes and tables that
JAX looks things up in. A dict's version is one word; when it has changed, the values are compared
with those at import. What jaxmarshal itself puts there is no change. The versions are compared in
every call, or, from Python 3.12 on, in the first one after Python told of a change to any of them.
"""

from libc.stdint cimport uint64_t

from cpython.object cimport PyObject

cdef extern from "jaxmarshal/compat.h":
    uint64_t jm_dict_version(PyObject* dictionary) noexcept
    uint64_t jm_object_dict_version(PyObject* dictionary) noexcept
    ctypedef struct WatchedDicts "jm_watched_dicts":
        uint64_t changes

# Changes to dicts of all rules together.
cdef WatchedDicts watched_dicts

cdef class Rules:
    cdef Py_ssize_t count
    cdef PyObject** dicts        # owned
    cdef uint64_t* versions      # as they were when the dict was looked at the last time
    cdef uint64_t changes        # how many were known when no version had changed; 0: look at them
    cdef list watched            # of each dict what it held at import, and what may be added to it
    cdef set changed             # numbers of the dicts that hold something else
    cdef dict own                # the attributes of the one evaluating trace itself
    cdef Py_ssize_t own_count    # how many they were; an object's dict need not have a version

# Compare the values of all dicts whose version changed. Are all what they were at import?
cdef bint look_again(Rules rules) noexcept

# All versions are what they were: need they be compared again before a change is told of?
cdef void trust_watcher(Rules rules) noexcept

# Is all that these rules watch what it was at import? Needs the GIL; cannot fail.
cdef inline bint is_untouched(Rules rules) noexcept:
    cdef Py_ssize_t i
    if rules.changes != watched_dicts.changes:
        for i in range(rules.count):
            if rules.versions[i] != jm_dict_version(rules.dicts[i]):
                return look_again(rules) and len(rules.own) == rules.own_count
        trust_watcher(rules)
    return not rules.changed and len(rules.own) == rules.own_count

# What `Primitive.bind` goes through outside a trace, apart from the primitive itself.
cdef Rules bind_rules

# What functions of `jax.numpy` that are entry points go through, `bind` included.
cdef Rules numpy_rules

# What all functions whose calls are replayed go through, those included.
cdef Rules function_rules

# What functions of modules that JAX imports later go through beside these: those modules.
cdef Rules late_rules

# What placing arguments goes through, and what calls of executables in Python do.
cdef Rules placement_rules

# The attributes of a primitive itself on which it depends how it is run.
cdef class Attributes:
    cdef tuple names     # all of them, interned, in their order
    cdef tuple values    # owned, where they count; a placeholder for others
    cdef uint64_t version    # of their dict when they were compared the last time, or 0

# Those of a primitive now, or None where they are such that only the reference can run it.
# Those with programs among their parameters are such, unless it is always the same program.
cdef Attributes attributes_of(object prim, bint of_one_program=*)

# All attributes of a function that is an object: each counts.
cdef Attributes all_attributes_of(object function)

# Are they still that?
cdef bint has_attributes(object prim, Attributes attributes) except -1

# Is `stage` what it was at import, and all that functions of `jax.numpy` go through to it?
cdef int stage_is_untouched() except -1
ctypedef int (*stage_is_untouched_function)() noexcept    # see `errors`

# How a primitive is implemented.
cdef enum Implementation:
    BY_OTHERS          # who knows
    BY_ONE_FUNCTION    # the reference's own rule: a jitted function for each set of parameters
    BY_JAX             # a function of JAX's own

# By the implementation that the primitive has now. Runs no code of users.
cdef Implementation implementation_of(object prim) except *

# Does it run outside a trace in no other way than by calling its implementation? `bind_with_trace`
# of its own, which `stage` and conversions have, is left to the caller to judge.
cdef bint is_ordinary(object prim) except -1

# Does it find its trace as others do, or in the way that JAX gave `stage` and conversions?
cdef bint binds_as_jax_has_it(object prim) except -1
