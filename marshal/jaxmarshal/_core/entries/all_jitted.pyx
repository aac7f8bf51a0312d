"""All jitted functions that there are, in the list by which jaxlib links them."""

from cpython.object cimport PyObject

from jaxmarshal._jax import private

cdef extern from "jaxmarshal/jitted.h":
    PyObject* jm_object_at(PyObject* object, Py_ssize_t offset) noexcept
    Py_ssize_t jm_find_link(PyObject* oldest, PyObject* middle, PyObject* newest) noexcept

cdef enum:
    MOST_FUNCTIONS = 10_000_000    # more are a list that leads in a circle
    TRIES = 3              # to make functions with none made in between by another thread

cdef object _reference_jit = private.jit


cdef list _three_functions():
    """New jitted functions; none where a program has JAX make them in a way that fails."""
    try:
        return [_reference_jit(lambda: None) for _ in range(3)]
    except Exception:
        return []


cdef list all_functions():
    cdef Py_ssize_t link = -1
    cdef PyObject* function = NULL
    found = []
    for _ in range(TRIES):
        made = _three_functions()
        if not made:
            break
        oldest, middle, newest = made
        link = jm_find_link(<PyObject*>oldest, <PyObject*>middle, <PyObject*>newest)
        if link >= 0:
            function = <PyObject*>oldest
            break
    while function != NULL and len(found) < MOST_FUNCTIONS:
        found.append(<object>function)
        function = jm_object_at(function, link)
    return found[1:]    # without the oldest of the three
