"""Writing tapes."""

from cpython.object cimport PyObject

from jaxmarshal._classify cimport (
    JM_ARRAY, JM_LITERAL, Py_TYPE, jm_kind_is_host, jm_kind_of_type, types
)

cdef extern from *:
    unsigned long PyThread_get_thread_ident() noexcept


cdef class Value:
    def __cinit__(self, Py_ssize_t number):
        self.number = number


cdef class Tape:
    def __cinit__(self, source):
        self.thread = PyThread_get_thread_ident()
        self.steps = []
        self.values = {}
        self.alive = []
        if source is not None:
            _add(self, source)


cdef int _add(Tape tape, object array) except -1:
    tape.values[id(array)] = len(tape.alive)
    tape.alive.append(array)
    return 0


cdef bint _add_argument(Tape tape, list kept, object arg) except -1:
    """Keep an argument of a step. False where it cannot be said what it will be the next time."""
    cdef int kind = jm_kind_of_type(&types, Py_TYPE(<PyObject*>arg))
    if kind == JM_ARRAY:
        number = tape.values.get(id(arg))
        if number is None:
            return False
        kept.append(Value(number))
        return True
    kept.append(arg)
    return jm_kind_is_host(kind) or kind == JM_LITERAL


cdef int note(object function, PyObject** args, Py_ssize_t n, PyObject* result) except -1:
    cdef Py_ssize_t i
    cdef Tape tape = current
    cdef list kept = []
    if tape.broken or tape.thread != PyThread_get_thread_ident():
        return 0
    if jm_kind_of_type(&types, Py_TYPE(result)) != JM_ARRAY:
        tape.broken = True
    for i in range(n):
        if tape.broken or not _add_argument(tape, kept, <object>args[i]):
            tape.broken = True
            return 0
    tape.steps.append((function, kept))
    _add(tape, <object>result)
    return 0


cdef Tape start_tape(object source):
    global current
    current = Tape(source)
    return current


cdef void stop_tape() noexcept:
    global current
    current = None


cdef bint is_result_of(Tape tape, object result, object function, object arg) except -1:
    number = tape.values.get(id(result))
    if number is None:
        return False
    called, args = tape.steps[number]
    return called is function and len(args) == 1 and args[0] is arg
