"""Where a function is defined, in whatever it is wrapped."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from jaxmarshal._jax import private


def code_of(
    function: Any, ask: Callable[..., Any] = inspect.getattr_static
) -> CodeType | None:
    """The code of the Python function that was jitted or wrapped, or None where nobody knows.

    Nothing of the program's runs, if `ask` is not `getattr`: some libraries make `__wrapped__` a
    property.
    """
    for _ in range(20):
        if issubclass(type(function), partial):
            function = partial.func.__get__(function)
            continue
        if type(function) is MethodType:
            function = function.__func__
            continue
        wrapped = ask(function, "__wrapped__", None)
        if type(wrapped) is property:
            return None
        if wrapped is not None:
            function = wrapped
        elif type(function) is FunctionType:
            return function.__code__
        else:
            function = ask(type(function), "__call__", None)
    return None


def name_of(function: Any, code: CodeType | None) -> str:
    """The name of a function, or that of its code."""
    name = inspect.getattr_static(function, "__name__", None)
    if type(name) is str and name:
        return name
    return code.co_name if code else "a function"


def short(path: str, narrow: bool = False) -> str:
    """A path for a table: from the current folder, or its last two parts; narrow, its last.

    Of what is installed somewhere below the current folder it is the last two parts, too.
    """
    installed = f"{os.sep}site-packages{os.sep}" in path
    relative = path if installed else path.removeprefix(os.getcwd() + os.sep)
    parts = relative.split(os.sep)
    if narrow:
        return relative if len(parts) == 1 else f"…/{parts[-1]}"
    return relative if relative != path or len(parts) <= 3 else "…/" + "/".join(parts[-2:])


def of_jitted(function: Any) -> str:
    """A jitted function as a report names it; empty where nobody knows."""
    code = code_of(function)
    if code is None:
        return ""
    place = f"{short(code.co_filename)}:{code.co_firstlineno}"
    return f"{name_of(function, code)} (jit), {place}"


def of_compiled(compiled: Any) -> str:
    """A function that was compiled ahead of time as a report names it; empty where nobody knows."""
    source = private.source_of(compiled)
    return "" if source is None else f"{source[0]} (compiled), {short(source[1])}:{source[2]}"
