"""Recording calls of public functions: the reference is called, and a tape notes its steps."""

from jaxmarshal._core.context.configuration cimport Context
from jaxmarshal._core.replay.key cimport Sources
from jaxmarshal._core.replay.plays cimport Replay

# How many times several steps are taken before they may become fewer.
cdef int times_to_fuse

# Would a tape hear of all that decides?
cdef bint hears_all() except -1

# Call the reference's function, and keep the steps it took, if they are all of it: `kept`. None
# where it was not called, because another thread is recording, or somebody would hear it. `casts`:
# may the call convert the program's numpy data?
cdef object record(
    Replay replay, object key, Sources* sources, object function, bint casts, tuple args,
    dict kwargs, bint* kept
)

# Call the reference's function and keep a sample of what it did; None where that is not wanted. The
# last `rows` sources are ints, without which `row_key` is the call's key.
cdef object record_rows(
    Context context, object key, object row_key, Py_ssize_t rows, Sources* sources,
    object function, tuple args, dict kwargs
)

# The last `n` sources.
cdef tuple rows_in(Sources* sources, Py_ssize_t n)
