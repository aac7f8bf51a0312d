"""What decides, beside the arrays' avals and the context, what a public function does in Python."""

from cpython.object cimport PyObject

cdef enum:
    MOST_SOURCES = 66    # of a call: a list, and two more

# What an argument of a call may be besides: the first one, but for an operand.
cdef enum HostData:
    NO_HOST
    HOST          # a numpy array or scalar itself
    HOST_ARRAYS   # numpy arrays with dimensions: itself, or items of a list or tuple
    HOST_OPERAND  # the second argument: a numpy array or scalar itself

# To whose dtype a function may convert a number among its arguments. Dtypes with fractions are in
# reach always.
cdef enum Converting:
    TO_ANY
    TO_ANY_BUT_KEYS    # the first source is one, typed or not
    TO_THE_FIRST       # a number with a fraction; the other sources are indices

# The arrays and typed keys among the arguments of a call, and host data, each once; owned.
ctypedef struct Sources:
    bint with_functions    # may functions be arguments, which are known by their identity?
    HostData host          # may an argument be host data, of which it holds dtype and shape?
    bint with_states       # may what is done for them depend on the states of `jax.random`?
    Converting numbers     # what those among the arguments may become
    bint converted         # are some of the arguments arrays that were made of the program's?
    Py_ssize_t count
    PyObject* items[MOST_SOURCES]

cdef void release_sources(Sources* sources) noexcept

# What stands for one of the reference's functions in keys.
cdef object function_part(object function)

# The arguments of a call of the function that `function` stands for, as something to look up; NULL
# without an error where one of them is something else than arrays, typed keys, plain values, and
# containers of those. Adds to the sources. A new reference. Runs no code of users.
cdef PyObject* key_of(
    object function, PyObject** args, Py_ssize_t n, PyObject* names, Sources* sources, int* reason
) except? NULL

# Is a kind of typed keys, or that of new ones, one of JAX's own, and none that a program defined?
cdef bint is_own_impl(object impl) except -1
cdef bint has_own_default_impl() except -1

# The plain numbers in such a key.
cdef list numbers_in(object key)

# The key of all calls that index an array as this one does, but for the rows: ints that count
# from the front, where it takes one or where a slice begins. Adds them to `rows`, and the arrays to
# the sources. None where Python does not do the same whatever the rows are.
cdef object key_with_rows(
    object function, PyObject** args, Py_ssize_t n, PyObject* names, Sources* sources, list rows
)

# Something that stands for the values that the states of `jax.random` have now, which the context
# lacks; always the same object for the same values. None for what depends on none of them.
cdef object states_of(Sources* sources)

# Do these states have the values still that the object stands for?
cdef bint are_states_now(object states) except -1
