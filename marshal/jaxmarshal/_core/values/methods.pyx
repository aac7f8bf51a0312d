"""Methods in C."""

import functools
import inspect
import sys
from types import FunctionType
from typing import Any

from cpython.object cimport PyObject, PyTypeObject
from libc.string cimport memset

from jaxmarshal._core.values.capi cimport (
    PyDict_GetItemWithError, PyDict_Next, PyTuple_GET_ITEM, PyTuple_GET_SIZE
)

cdef extern from *:
    object PyMethod_New(object function, object self)
    void PyType_Modified(PyTypeObject* cls) noexcept

cdef extern from "jaxmarshal/compat.h":
    PyObject* jm_class_dict(PyTypeObject* cls) noexcept
    void jm_forget_getitem(PyTypeObject* type) noexcept

ctypedef int (*fits_function)(Method, Py_ssize_t, PyObject*) noexcept

# What a function of Python shows of itself, beside what `functools.wraps` copies.
cdef tuple _ATTRIBUTES = (
    *functools.WRAPPER_ASSIGNMENTS,
    "__code__", "__closure__", "__globals__", "__builtins__", "__defaults__", "__kwdefaults__",
)


def _found(module, name):
    """The object of this qualified name, for whoever loads it from a pickle."""
    found = sys.modules.get(module) or __import__(module, fromlist=["_"])
    for part in name.split("."):
        found = getattr(found, part)
    return found


cdef dict named_arguments(PyObject** args, PyObject* names):
    cdef Py_ssize_t i
    if names == NULL:
        return {}
    return {
        <object>PyTuple_GET_ITEM(names, i): <object>args[i]
        for i in range(PyTuple_GET_SIZE(names))
    }


cdef class Method:
    """One of the reference's methods or functions, accelerated.

    It says that it is of the class of functions, for whoever asks before it asks for `__code__`.
    """

    def __cinit__(self):
        self.shown = {}

    def __get__(self, instance, owner):
        return self if instance is None else PyMethod_New(self, instance)

    def __call__(self, *args, **kwargs):
        return self(*args, **kwargs)    # by `vectorcall`; this is for whoever asks for `__call__`

    @property
    def __class__(self):
        return FunctionType if type(self.reference) is FunctionType else type(self)

    def __repr__(self):
        return f"<function {self.__qualname__} at {<size_t><PyObject*>self:#x}>"

    def __reduce_ex__(self, protocol):
        """By the reference's name, as a function is, or by one of ours where it is not there."""
        try:
            if _found(self.__module__, self.__qualname__) is self:
                return self.__qualname__
        except Exception:
            pass
        return self.__qualname__ if self.home is None else (_found, ("jaxmarshal", self.home))

    def __reduce__(self):
        return self.__reduce_ex__(2)


cdef Method make_method(vectorcallfunc implementation, object reference):
    cdef Method method = Method()
    method.implementation = implementation
    method.reference = reference
    for name in _ATTRIBUTES:
        if hasattr(reference, name):
            method.shown[name] = getattr(reference, name)
    vars(method).update(getattr(reference, "__dict__", {}))
    return method


def _shown(name):
    """An attribute that functions have beside what is in their `__dict__`."""
    def get(Method method):
        if name not in method.shown:
            raise AttributeError(f"{type(method).__name__!r} object has no attribute {name!r}")
        return method.shown[name]

    def set(Method method, value):
        method.shown[name] = value

    return property(get, set)


(<dict>jm_class_dict(<PyTypeObject*>Method)).update({name: _shown(name) for name in _ATTRIBUTES})
PyType_Modified(<PyTypeObject*>Method)


def set_attribute(holder: Any, name: str, function: Any) -> None:
    """Set an attribute of a module or a class, however often that was done before."""
    setattr(holder, name, function)
    if isinstance(holder, type):
        jm_forget_getitem(<PyTypeObject*>holder)


cdef inline size_t _bit_of(size_t address) noexcept:
    return address >> 4 & 4095


def replace_values(list namespaces, dict replacements) -> None:
    """Put others in place of values in namespaces. `replacements`: by what `id` says of a value.

    Nothing is copied, since few of many thousand values are replaced: most are told by a bit.
    """
    cdef uint64_t[64] bits
    cdef Py_ssize_t place
    cdef size_t bit
    cdef PyObject* name = NULL
    cdef PyObject* value = NULL
    memset(bits, 0, sizeof(bits))
    for address in replacements:
        bit = _bit_of(address)
        bits[bit >> 6] |= <uint64_t>1 << (bit & 63)
    for namespace in namespaces:
        place = 0
        while PyDict_Next(namespace, &place, &name, &value):
            bit = _bit_of(<size_t>value)
            if not bits[bit >> 6] >> (bit & 63) & 1:
                continue
            found = replacements.get(<size_t>value)
            if found is not None:
                namespace[<object>name] = found    # a name that is there: no place moves


# --- Functions that Cython compiled --------------------------------------------------------------

cdef int _fits(Method method, Py_ssize_t n, PyObject* names) except -1:
    """Does a call with `n` arguments by position fit the reference's signature?"""
    cdef Py_ssize_t i, place
    cdef PyObject* found
    cdef uint64_t given
    if n > method.positional:
        if not method.takes_more:
            return False
        n = method.positional
    given = (<uint64_t>1 << n) - 1
    for i in range(0 if names == NULL else PyTuple_GET_SIZE(names)):
        found = PyDict_GetItemWithError(method.places, <object>PyTuple_GET_ITEM(names, i))
        if found == NULL:
            if not method.takes_others:
                return False
            continue
        place = <object>found
        if place < n or place < method.by_position:
            return False
        given |= <uint64_t>1 << place
    return given & method.required == method.required


cdef PyObject* _call_checked(
    PyObject* self, PyObject** args, size_t nargsf, PyObject* names
) except? NULL:
    """Call the accelerated function, or the reference for it to say what is wrong with the call."""
    cdef Method method = <Method>self
    cdef object function = method.inner
    if not (<fits_function>_fits)(method, PyVectorcall_NARGS(nargsf), names):
        function = method.reference
    return PyObject_Vectorcall(<PyObject*>function, args, nargsf, names)


def in_place_of(reference, function, home=None):
    """What stands in for a function of the reference and calls `function` where a call is in order.

    `home` is its public name in jaxmarshal, if it has one.
    """
    cdef Method method
    if function is None or isinstance(function, Method):
        return function
    if type(reference) is not FunctionType or type(inspect.unwrap(reference)) is not FunctionType:
        return function
    signed = inspect.unwrap(reference)    # a wrapper takes all, and what it wraps refuses
    code = signed.__code__
    method = make_method(<vectorcallfunc>_call_checked, reference)
    method.inner = function
    method.home = home
    names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
    method.places = {name: place for place, name in enumerate(names)}
    method.positional = code.co_argcount
    method.by_position = code.co_posonlyargcount
    optional = {*names[code.co_argcount - len(signed.__defaults__ or ()):code.co_argcount]}
    optional.update(signed.__kwdefaults__ or ())
    for name in set(names) - optional:
        method.required |= <uint64_t>1 << <int>method.places[name]
    method.takes_more = bool(code.co_flags & inspect.CO_VARARGS)
    method.takes_others = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return method


jm_use_vectorcall(
    <PyTypeObject*>Method, <Py_ssize_t><void*>&(<Method><void*>NULL).implementation, True
)
