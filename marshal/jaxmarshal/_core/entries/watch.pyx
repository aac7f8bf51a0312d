"""Calls of jitted functions, and counts of single calls, for `compare` and `explain`.

A jitted function has no Python frame, and no attribute that could be replaced. It is watched where
it is accelerated: by the pointer it is called by. That pointer leads to `_seen`, which has a Python
function, the *hook*, make the call.
"""

import weakref

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport memcpy

from jaxmarshal._core.entries.all_jitted cimport all_functions
from jaxmarshal._core.values.errors cimport propagate
from jaxmarshal._core.values.methods cimport PyVectorcall_NARGS, vectorcallfunc
from jaxmarshal._reports.counting cimport REASON_COUNT, Entry, entries, entry_number, number_now

from jaxmarshal._core.entries import jit
from jaxmarshal.reasons import REASONS

cdef extern from "jaxmarshal/jitted.h":
    vectorcallfunc* jm_vectorcall_of(PyObject* function) noexcept

cdef extern from *:
    """
    /* Is a call of this thread being counted? */
    static __thread int jm_is_inside = 0;
    """
    int jm_is_inside

# As their callers see them; see `errors`.
ctypedef PyObject* (*call_function)(PyObject*, PyObject**, size_t, PyObject*) noexcept


cdef class _Watched:
    """What is known of a watched function; `_watched` owns it until the function dies."""
    cdef vectorcallfunc call    # what the function was called by
    cdef object hook
    cdef object reference       # a weak one to the function
    cdef bint always            # also inside of a call that is counted


cdef dict _watched = {}    # id of a function -> _Watched


cdef class Pending:
    """A call of a jitted function that waits for its hook to make it, by calling this."""
    # All are borrowed from the caller, who holds them while the hook runs.
    cdef vectorcallfunc call
    cdef PyObject* function
    cdef PyObject** args
    cdef size_t nargsf
    cdef PyObject* names

    def __call__(self):
        if self.function == NULL:
            raise RuntimeError("the call is over")
        cdef PyObject* result = self.call(self.function, self.args, self.nargsf, self.names)
        if result == NULL:
            propagate()
        made = <object>result
        Py_DECREF(made)
        return made

    def arguments(self):
        """The arguments of the call: a tuple, and a dict of those that are given by name."""
        cdef Py_ssize_t i, given
        if self.function == NULL:
            raise RuntimeError("the call is over")
        given = PyVectorcall_NARGS(self.nargsf)
        names = <tuple><object>self.names if self.names != NULL else ()
        return (
            tuple([<object>self.args[i] for i in range(given)]),
            {name: <object>self.args[given + i] for i, name in enumerate(names)},
        )


cdef PyObject* _seen(
    PyObject* self, PyObject** args, size_t nargsf, PyObject* names
) except NULL:
    cdef _Watched watched = _watched[<size_t>self]
    cdef Pending pending
    cdef PyObject* result
    if jm_is_inside and not watched.always:
        result = watched.call(self, args, nargsf, names)
        if result == NULL:
            propagate()
        return result
    pending = Pending.__new__(Pending)
    pending.call, pending.function = watched.call, self
    pending.args, pending.nargsf, pending.names = args, nargsf, names
    try:
        made = watched.hook(pending)
    finally:
        pending.function = NULL
    Py_INCREF(made)
    return <PyObject*>made


def watch(function, make_hook, bint always=False):
    """Have calls of a jitted function come to `make_hook(function)`, which gets a `Pending`.

    The hook returns what calling the `Pending` returns, and must not hold the function. Calls
    between `enter` and `leave` do without it, unless `always` is set. Anything else than a jitted
    function stays as it is, and so does one that is watched already: False then.
    """
    cdef vectorcallfunc* pointer
    cdef _Watched watched
    if not jit.is_jitted(function):
        return False
    pointer = jm_vectorcall_of(<PyObject*>function)
    if pointer[0] == <vectorcallfunc><call_function>_seen:
        return False
    key = id(function)
    watched = _Watched.__new__(_Watched)
    watched.call = pointer[0]
    watched.always = always
    watched.hook = make_hook(function)
    watched.reference = weakref.ref(function, lambda _: _watched.pop(key, None))
    _watched[key] = watched
    pointer[0] = <vectorcallfunc><call_function>_seen
    return True


def watch_all(make_hook):
    """Watch all jitted functions that there are now."""
    for function in all_functions():
        watch(function, make_hook)


def release(function):
    """Have a function be called as before it was watched."""
    cdef _Watched watched = _watched.pop(id(function), None)
    cdef vectorcallfunc* pointer
    if watched is not None:
        pointer = jm_vectorcall_of(<PyObject*>function)
        if pointer[0] == <vectorcallfunc><call_function>_seen:
            pointer[0] = watched.call


def release_all():
    """Have every watched function be called as before it was watched."""
    cdef _Watched watched
    for watched in list(_watched.values()):
        function = watched.reference()
        if function is not None:
            release(function)
    _watched.clear()


def enter():
    """Begin a call that is counted; False where this thread is in one already."""
    global jm_is_inside
    if jm_is_inside:
        return False
    jm_is_inside = 1
    return True


def leave():
    """End what `enter` has begun."""
    global jm_is_inside
    jm_is_inside = 0


cdef class Mark:
    """The counts of one entry point at some time."""
    cdef int number
    cdef Entry before

    def __init__(self, str name):
        self.number = number_now(entry_number(name))
        memcpy(&self.before, &entries[self.number], sizeof(Entry))

    def ending(self) -> str:
        """What was counted since then: "hit", the name of a reason, or "" for nothing."""
        cdef int reason
        cdef Entry* now = &entries[self.number]
        if now.hits != self.before.hits:
            return "hit"
        for reason in range(1, <int>REASON_COUNT):
            if now.misses[reason] != self.before.misses[reason]:
                return str(REASONS[reason].name)
        return ""
