"""Methods in C."""

from functools import update_wrapper

from cpython.object cimport PyTypeObject

cdef extern from *:
    object PyMethod_New(object function, object self)


# What a function of Python shows of itself, beside what `functools.wraps` copies.
cdef tuple _ATTRIBUTES = (
    "__code__", "__closure__", "__globals__", "__builtins__", "__defaults__", "__kwdefaults__",
)


cdef class Method:
    """One of the reference's methods or functions, accelerated."""

    def __get__(self, instance, owner):
        return self if instance is None else PyMethod_New(self, instance)

    def __call__(self, *args, **kwargs):
        return self(*args, **kwargs)    # by `vectorcall`; this is for whoever asks for `__call__`

    def __repr__(self):
        return f"<{self.__module__}.{self.__qualname__}, accelerated by jaxmarshal>"

    def __reduce__(self):
        return self.__qualname__    # found there by whoever loads it, as a function is


cdef Method make_method(vectorcallfunc implementation, object reference):
    cdef Method method = Method()
    method.implementation = implementation
    if reference is None:
        return method
    for name in _ATTRIBUTES:
        if hasattr(reference, name):
            setattr(method, name, getattr(reference, name))
    return update_wrapper(method, reference)


jm_use_vectorcall(
    <PyTypeObject*>Method, <Py_ssize_t><void*>&(<Method><void*>NULL).implementation, True
)
