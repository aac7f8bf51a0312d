"""The call of a carry: its compiled function is given what is carried, and makes the next.

A state of few arrays gains nothing by being packed, so its call must cost no more than one of
`jax.jit` does: what Python would do around it is done here.
"""

cimport cython
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport memcpy

from jaxmarshal._core.values.capi cimport PyDict_GetItemWithError, PyTuple_GET_SIZE
from jaxmarshal._core.values.errors cimport propagate
from jaxmarshal._core.values.methods cimport (
    PyObject_Vectorcall, PyVectorcall_NARGS, jm_use_vectorcall, vectorcallfunc
)

from jaxmarshal._jax import private

cdef extern from *:
    Py_ssize_t Py_REFCNT(PyObject* object) noexcept
    bint PyObject_GC_IsTracked(PyObject* object) noexcept
    int PyTuple_SetItem(PyObject* items, Py_ssize_t i, PyObject* item) except -1    # takes the item

cdef enum:
    MOST = 16    # arguments of a call that is made here

cdef object _array_type = private.ArrayImpl
cdef object _tracer_type = private.Tracer
cdef tuple _nothing = ()


@cython.auto_pickle(False)
cdef class Carried:
    """Arrays that a carry is given and gives back."""


@cython.auto_pickle(False)
cdef class CarryCall:
    """A function from one `Carried` to the next."""

    def __init__(self, made, donate, direct, explain):
        self.implementation = <vectorcallfunc>_call
        self._runs = {}
        self._type = made
        self._donate = donate
        self._direct = direct
        self._explain = explain

    def __call__(self, *args, **kwargs):
        return self(*args, **kwargs)    # by `vectorcall`; this is for whoever asks for `__call__`

    def _forget_runs(self):
        """Have every compiled function be made anew."""
        self._last = None
        self._runs.clear()

    def _next(self, carried, result):
        """What the call with it returns, of what its compiled function returned."""
        Py_INCREF(result)
        return _made(self, carried, <PyObject*>result)


cdef inline Carried _new(object made, object children, object plan, object key):
    cdef Carried carried = <Carried>(<PyTypeObject*>made).tp_new(made, <PyObject*>_nothing, NULL)
    carried._children = children
    carried._plan = plan
    carried._key = key
    return carried


def carried_of(made, children, plan, key):
    """One of this type, past what its `__init__` says."""
    return _new(made, children, plan, key)


cdef inline bint _is_traced(tuple children) except -1:
    """Did a transformation make them? Then nothing has been donated."""
    if not children or type(children[0]) is _array_type:
        return False
    return isinstance(children[0], _tracer_type)


cdef int _fails(CarryCall carry, object children) except -1:
    """Raise the error of a compiled function, or one that says what has happened."""
    try:
        propagate()
    except (RuntimeError, ValueError) as error:
        carry._explain(children, error)
        raise
    return -1


cdef object _made(CarryCall carry, Carried carried, PyObject* result):
    """What the call returns, of what its compiled function returned, which is taken over.

    That is a tuple of children, or a pair of it and what else the step returned. Where the key
    names shardings, it is always a pair, with a tuple of what there is as its second part.
    """
    cdef tuple both = <tuple?><object>result
    Py_DECREF(both)
    cdef tuple children = both
    cdef bint is_pair = len(both) and type(both[0]) is tuple
    if is_pair:
        children = <tuple>both[0]
    if carry._donate and not _is_traced(children):
        carried._children = None    # whoever uses it from now on is told
    after = _new(carry._type, children, carried._plan, carried._key)
    if not is_pair:
        return after
    if type(carried._key) is tuple:
        return (after, both[1][0]) if both[1] else after
    # Nobody else knows the pair: it can be used for the result. Collections have to know it.
    if Py_REFCNT(result) == 1 and PyObject_GC_IsTracked(result):
        Py_INCREF(after)
        PyTuple_SetItem(result, 0, <PyObject*>after)
        return both
    return after, both[1]


cdef inline object _run_of(CarryCall carry, object key):
    """Its compiled function for this key, or None."""
    cdef tuple last = carry._last
    cdef PyObject* found
    if last is not None and last[0] is key:
        return last[1]
    found = PyDict_GetItemWithError(carry._runs, key)
    if found == NULL:
        return None
    last = (key, <object>found)
    carry._last = last    # what goes with the one before may run code, which may call this
    return last[1]


cdef PyObject* _call(PyObject* self, PyObject** args, size_t nargsf, PyObject* names) except? NULL:
    cdef CarryCall carry = <CarryCall>self
    cdef Py_ssize_t n = PyVectorcall_NARGS(nargsf)
    cdef Py_ssize_t count = n + (0 if names == NULL else PyTuple_GET_SIZE(names))
    cdef PyObject* given[MOST]
    cdef PyObject* found
    cdef object run = None
    cdef Carried carried = None
    if carry._direct and n and count <= MOST and type(<object>args[0]) is carry._type:
        carried = <Carried>args[0]
        if carried._key is not None:
            run = _run_of(carry, carried._key)
    # The first such call, another kind of call, or one with what was donated, which is an error.
    if run is None or carried._children is None:
        method = carry._any_call
        return PyObject_Vectorcall(<PyObject*>method, args, nargsf, names)
    children = carried._children    # kept, whatever others do meanwhile
    memcpy(given, args, count * sizeof(PyObject*))
    given[0] = <PyObject*>children
    found = PyObject_Vectorcall(<PyObject*>run, given, n, names)
    if found == NULL:
        _fails(carry, children)
    made = _made(carry, carried, found)
    Py_INCREF(made)
    return <PyObject*>made


def called_directly(carry):
    """Have objects of a subclass of `CarryCall` called without a tuple of their arguments."""
    assert issubclass(carry, CarryCall)
    jm_use_vectorcall(
        <PyTypeObject*>carry, <Py_ssize_t><void*>&(<CarryCall><void*>NULL).implementation, False
    )
