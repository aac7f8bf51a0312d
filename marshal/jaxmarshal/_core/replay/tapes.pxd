"""What jitted functions were called, with what, while a function of the reference ran.

Each call is a step. Its arguments are the sources (arrays and typed keys among the arguments of
the whole call), results of earlier steps, and constants. An array of which it is not known where
it came from breaks the tape.
"""

from cpython.object cimport PyObject

from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.replay.key cimport Converting
from jaxmarshal._core.values.methods cimport vectorcallfunc

cdef class Tape:
    cdef unsigned long thread
    cdef Context context     # that the whole call has
    cdef list steps          # of Step
    cdef dict primitives     # id of a primitive that was bound on the way -> (it, its Attributes)
    cdef dict values         # id of an array or a typed key -> what it is: a Value or a Base
    cdef list functions      # of the steps
    cdef list alive          # the sources, then the results of the steps: no id is used twice
    cdef bint broken
    cdef bint with_functions    # may host data on it be those of a function of the program's?
    cdef list host           # the numbers of the sources that are host data
    cdef Converting numbers  # as in `Sources`
    cdef bint casts          # may host data on it be those in another dtype?

# The tape that is being written, or None.
cdef Tape current

cdef enum:
    MOST_ARGS = 16       # of a step that is taken without making a list of them
    MOST_VALUES = 160    # sources and results of a call

# One call.
cdef class Step:
    cdef readonly object function     # returns it; a weak reference where JAX keeps it
    cdef readonly tuple args          # constants, and what `fill_arguments` fills in
    cdef readonly tuple names         # of the last ones, or None
    cdef readonly Py_ssize_t first    # the number of its first result
    cdef readonly Py_ssize_t results  # how many there are
    cdef bint is_plain       # are the arguments few, and constants and values alone?
    cdef Py_ssize_t values[MOST_ARGS]    # then the number of each, or -1 for a constant
    cdef bint takes_host     # is host data of the caller's among them? Then plans are of no use

# A source or the result of a step, by its number.
cdef class Value:
    cdef readonly Py_ssize_t number

# The array of words of a typed key.
cdef class Base:
    cdef readonly Value key

# A typed key made of an array of words.
cdef class Key:
    cdef readonly object impl
    cdef readonly object words
    cdef bint is_plain    # is all that it has what `_make_key` gives it?

# Host data in another dtype.
cdef class Cast:
    cdef readonly Value source
    cdef readonly object dtype

# A container with some of these among its items.
cdef class Nested:
    cdef readonly object make         # the container of a list of its items
    cdef readonly list items

# Is the tape that is being written about what this thread does?
cdef bint is_about_this_thread() noexcept

# Note a call and what it returned: `n` arguments by position, then those that `names` names.
# Cannot fail: what cannot be noted breaks the tape.
cdef void note(
    object function, PyObject** args, Py_ssize_t n, PyObject* names, PyObject* result
) noexcept

# Note that a primitive is bound, with parameters of these names. One that is not run in a way of
# JAX's own breaks the tape, and so does one that has effects or calls Python.
cdef void note_primitive(PyObject* prim, PyObject** params, PyObject* names) noexcept

# Are primitives run in the way in which they were when they were noted? Pairs as in a tape.
cdef bint have_their_rules(list primitives) except -1

# Begin to write a tape about sources; None while there is another one. Whoever looks at the
# elements of an array from then on breaks the tape. With functions of the program's among the
# arguments, so do numpy arrays, which may be theirs, and be edited. With host data among the
# sources, so do others, which may be made of them, but for the very data in another dtype, if the
# call casts them.
cdef Tape start_tape(list sources, bint with_functions=*, bint casts=*)

# `device_put`, as a step is noted by it; set by `device_put`. What it returns may be its argument,
# or have the same buffer.
cdef object put_function

# Convert what a step takes of host data, and drop that. Raises where numpy may warn.
cdef int cast_sources(Step step, PyObject** values) except -1

# What stands on a tape for an object that the call returned; None where that is not known.
cdef object describe_result(Tape tape, object result)

# The object itself, from the values of this call.
cdef object fill_arguments(object described, PyObject** values)

# Take a step, and add its results to the values, owned; `count` is how many there are. The context
# is that of this very moment, which is not found out anew.
cdef int take_step(
    Step step, PyObject* function, PyObject** values, Py_ssize_t* count, Context context
) except -1

# What accelerated functions are called by, what calls one as the reference does, and what calls one
# in a known context; set by `jit`.
cdef vectorcallfunc accelerated_call
cdef vectorcallfunc reference_call
cdef PyObject* (*call_in_context)(
    PyObject* function, PyObject** args, size_t nargsf, PyObject* names, Context context
) noexcept

# Take the results of steps that depend on no source as constants, but for what the described result
# is made of: that has to be new in every call. Steps with one of these ints stay.
cdef int fold_constants(Tape tape, object described, tuple numbers=*) except -1

# Keep functions of steps that nobody else keeps: those that were jitted for this very call.
cdef int keep_functions(Tape tape) except -1

# Put host data among the constants on the device, once for all calls.
cdef int prepare_constants(Tape tape) except -1

# The steps that lead to a described result, numbered anew, and that description. Others were taken
# by whatever else ran on this thread meanwhile: finalizers, signal handlers. None where they are
# too many.
cdef tuple needed_steps(Tape tape, Py_ssize_t sources, object described)

# On a tape about no array: is an object what this function returned for this argument alone?
cdef bint is_result_of(Tape tape, object result, object function, object arg) except -1

# The steps of two calls that differ in some ints alone, with those as sources behind the others,
# and the description of the result; None where they differ in anything else. Both as
# `needed_steps` returned them; `ones` and `others` are the ints. One that is the same in both is
# no source.
cdef tuple merged_steps(
    tuple first, tuple ones, tuple second, tuple others, Py_ssize_t sources
)

# Stop writing.
cdef int stop_tape() except -1
