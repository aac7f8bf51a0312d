"""What a Python function names, as its code shows: globals, attributes of these, operators.

Nothing is called, and no property is asked for. What a function gets as an argument, or computes,
is not known.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

#: What stands for a name that leads nowhere.
_NOTHING = object()

#: How programs write an index.
INDEX = "x[...]"

_INDEXING = ("BINARY_SUBSCR", "BINARY_SLICE")
_UNARY = {"UNARY_NEGATIVE": "-", "UNARY_INVERT": "~"}


def _codes(code: CodeType) -> Iterator[CodeType]:
    """This code, and that of the functions and comprehensions inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _closure(function: FunctionType) -> dict[str, Any]:
    found = {}
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:    # it is empty still
            continue
    return found


def attribute(value: Any, name: str) -> Any:
    """What an attribute of a module, a class or an object is; a property is not asked for."""
    if isinstance(value, ModuleType):
        return vars(value).get(name, _NOTHING)
    found = inspect.getattr_static(value, name, _NOTHING)
    return found.__func__ if isinstance(found, (staticmethod, classmethod)) else found


def values(function: FunctionType) -> list[Any]:
    """What the names in a function stand for, such as `jax.nn.relu`, in the order of its code."""
    closure = _closure(function)
    found = []
    for code in _codes(function.__code__):
        value = _NOTHING
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and value is not _NOTHING:
                value = attribute(value, name)
            elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                value = function.__globals__.get(name, _NOTHING)
            elif instruction.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
                value = closure.get(name, _NOTHING)
            elif instruction.opname not in ("PUSH_NULL", "CACHE"):
                value = _NOTHING
            if value is not _NOTHING and value is not None:
                found.append(value)
    return found


def operators(function: FunctionType) -> list[str]:
    """The operators that a function uses, as programs write them; `x[...]` for an index."""
    found: dict[str, None] = {}
    for code in _codes(function.__code__):
        for instruction in dis.get_instructions(code):
            name = instruction.opname
            if name in _INDEXING or (name == "BINARY_OP" and instruction.argrepr == "[]"):
                found[INDEX] = None
            elif name == "BINARY_OP":
                found[instruction.argrepr.removesuffix("=")] = None
            elif name == "COMPARE_OP":
                found[str(instruction.argval)] = None
            elif name in _UNARY:
                found[_UNARY[name]] = None
    return list(found)
