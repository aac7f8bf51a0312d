"""Whose an error is."""

from jaxmarshal._jax import private

cdef tuple _folders = private.FOLDERS
cdef tuple _compiled = (".pyx", ".pxd")


cdef bint is_of_program(object error) except -1:
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(_folders) and not name.endswith(_compiled):
            return True
        trace = trace.tb_next
    return False
