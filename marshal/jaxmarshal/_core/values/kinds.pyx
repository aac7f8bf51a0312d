"""Classification of arguments by exact type, through a table keyed by type pointer.

A subclass is never its base class: a subclass of `numpy.ndarray` or of `float` is `OTHER`, and
`OTHER` goes to the reference. Tracer classes are the exception in name only: each is added by
itself when it is first met.
"""

import enum

import numpy as np

from jaxmarshal._jax import private


class ArgKind(enum.IntEnum):
    """What an argument is. The values are those of the C enum `jm_kind`."""

    OTHER = JM_OTHER
    ARRAY = JM_ARRAY
    NDARRAY = JM_NDARRAY
    NP_SCALAR = JM_NP_SCALAR
    BOOL = JM_BOOL
    INT = JM_INT
    FLOAT = JM_FLOAT
    COMPLEX = JM_COMPLEX
    TRACER = JM_TRACER
    REF = JM_REF
    KEY_ARRAY = JM_KEY_ARRAY
    TOKEN = JM_TOKEN
    LITERAL = JM_LITERAL
    NONE = JM_NONE
    LIST = JM_LIST
    TUPLE = JM_TUPLE
    DICT = JM_DICT


def add_type(object cls, int kind) -> None:
    """Classify exact instances of `cls` as `kind` from now on; the class is kept alive.

    Raises `TypeError` for what is no class, `ValueError` for what is no kind, `MemoryError` when
    the table is full.
    """
    if not isinstance(cls, type):
        raise TypeError(f"expected a class, got {cls!r}")
    if not 0 <= kind < JM_KIND_COUNT:
        raise ValueError(f"expected an ArgKind, got {kind}")
    if jm_type_table_set(&types, <PyTypeObject*>cls, kind) < 0:
        raise MemoryError(f"the type table is full; cannot add {cls!r}")


def kind_of(obj: object) -> ArgKind:
    """The kind of `obj` by its exact type."""
    cdef int kind = classify(<PyObject*>obj)
    return ArgKind(kind_of_unknown(obj) if kind == JM_OTHER else kind)


cdef int kind_of_unknown(object obj) except -1:
    """The kind of an object whose type is not in the table; adds tracer classes to it."""
    if private.Tracer is not None and isinstance(obj, private.Tracer):
        jm_type_table_set(&types, Py_TYPE(<PyObject*>obj), JM_TRACER)
        return JM_TRACER
    return JM_OTHER


def _fill() -> None:
    for cls, kind in (
        (np.ndarray, JM_NDARRAY),
        (bool, JM_BOOL),
        (int, JM_INT),
        (float, JM_FLOAT),
        (complex, JM_COMPLEX),
        (type(None), JM_NONE),
        (list, JM_LIST),
        (tuple, JM_TUPLE),
        (dict, JM_DICT),
        (private.ArrayImpl, JM_ARRAY),
        (private.Tracer, JM_TRACER),
        (private.Ref, JM_REF),
        (private.PRNGKeyArray, JM_KEY_ARRAY),
        (private.Token, JM_TOKEN),
        (private.TypedNdArray, JM_LITERAL),
    ):
        if cls is not None:
            add_type(cls, kind)
    for cls in private.numpy_scalars():
        add_type(cls, JM_NP_SCALAR)
    for cls in private.typed_scalar_types:
        add_type(cls, JM_LITERAL)


_fill()
