"""Whose an error is."""

import os

import jax
import jaxlib
import numpy

cdef tuple _folders = tuple([
    os.path.dirname(package.__file__) + os.sep for package in (jax, jaxlib, numpy)
] + [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep])
cdef tuple _compiled = (".pyx", ".pxd")


cdef bint is_of_program(object error) except -1:
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(_folders) and not name.endswith(_compiled):
            return True
        trace = trace.tb_next
    return False
