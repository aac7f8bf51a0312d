"""The front of `equinox.filter_jit`. It is imported once equinox is."""

from __future__ import annotations

import dataclasses
import functools
import logging
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax

from jaxmarshal._core.context import bypassed
from jaxmarshal._core.entries import filtered
from jaxmarshal._jax import private

_jit = import_module("equinox._jit")
_compile_utils = import_module("equinox._compile_utils")
_filters = import_module("equinox._filters")
_module = import_module("equinox._module._module")
_flatten = import_module("equinox._module._flatten")

_wrapper: type = _jit._JitWrapper
_reference_call: Callable[..., Any] = vars(_wrapper)["__call__"]
_getters = (object.__getattribute__, vars(_module.Module)["__getattribute__"])


def _is_read_plainly(cls: type) -> bool:
    """Does `instance.__dict__`, which flatten functions read, give the instance's own?"""
    for base in cls.__mro__:
        if "__dict__" in vars(base):
            plain = type(vars(base)["__dict__"]) is types.GetSetDescriptorType
            return plain and getattr(cls, "__getattribute__", None) in _getters
    return False


def _has_the_code(function: types.FunctionType, made: types.FunctionType) -> bool:
    """Is its code the same? The docstring may name the class as it was called when it was made."""
    code, other = function.__code__, made.__code__
    text, constants = function.__doc__, other.co_consts
    if type(text) is str and code.co_consts[:1] == (text,) and constants[:1] == (made.__doc__,):
        other = other.replace(co_consts=(text, *constants[1:]))
    return code == other


def _does_the_same(function: Any, made: types.FunctionType) -> bool:
    """Is it a function that equinox has made just as this one?"""
    return (
        type(function) is types.FunctionType
        and _has_the_code(function, made)
        and function.__defaults__ is None
        and function.__closure__ is None
        and function.__globals__.get("MISSING") is _flatten.MISSING
        and function.__globals__.get("object") is object
    )


def _names_of(cls: type) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The names of the dynamic and the static fields of a Module; None for any other class.

    They are those that its functions go by which JAX has: what equinox makes of these very names
    has the same code.
    """
    registered = private.pytree_node_types.get(cls)
    if registered is None or not issubclass(cls, _module.Module) or not _is_read_plainly(cls):
        return None
    fields = dataclasses.fields(cls)
    flatten, _, unflatten = _flatten.generate_flatten_functions(cls, fields)
    makes = registered.from_iter
    if type(makes) is not functools.partial or makes.args != (cls,) or makes.keywords:
        return None
    if not _does_the_same(registered.to_iter, flatten):
        return None
    if not _does_the_same(makes.func, unflatten):
        return None
    names = [(field.name, bool(field.metadata.get("static", False))) for field in fields]
    return (
        tuple(name for name, is_static in names if not is_static),
        tuple(name for name, is_static in names if is_static),
    )


_accelerated = filtered.make_front(
    "equinox_filter_jit",
    _wrapper,
    _reference_call,
    [_jit, _compile_utils, _filters, _flatten, jax.tree_util],
    _names_of,
    _is_read_plainly,
    _filters.combine,
    _flatten.MISSING,
    tuple(_flatten.WRAPPER_FIELD_NAMES),
    logging.getLogger("jax._src.callback"),
    _jit._FilterCallback,
    (import_module("equinox.nn._stateful").State,),
)
bypassed.put_in_place_of(_reference_call, _accelerated)


def install() -> None:
    """Have calls of what `filter_jit` returns try plans."""
    if vars(_wrapper).get("__call__") is _reference_call:
        setattr(_wrapper, "__call__", _accelerated)  # noqa: B010


def uninstall() -> None:
    """Put the library's own function back."""
    if vars(_wrapper).get("__call__") is _accelerated:
        setattr(_wrapper, "__call__", _reference_call)  # noqa: B010


def place() -> tuple[type, Callable[..., Any]]:
    """The class of what `filter_jit` returns, and the library's own function that calls it."""
    return _wrapper, _reference_call


def explained(f: Any) -> Callable[..., Any] | None:
    """The replacement of the function that calls `f`, or None where `f` is of another kind."""
    return _accelerated if type(f) is _wrapper else None
