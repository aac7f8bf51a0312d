"""Which function does the program call now? Found from its frames, for a line of the log.

A jitted function has no frame of its own. Its caller's frame says which expression is called, and
the names in it lead to the function, as far as they can be followed without calling anything.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import jax

from jaxmarshal._reports import definitions, names_in_code

#: The folders whose frames are no program's: those of JAX and of this package.
_INNER = tuple(
    str(folder) + os.sep for folder in (Path(jax.__file__).parent, Path(__file__).parents[1])
)


def _program() -> FrameType | None:
    """The innermost frame of the program."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_INNER):
        frame = frame.f_back
    return frame


def _expression(frame: FrameType) -> ast.expr | None:
    """What stands before the brackets of the call that a frame is making."""
    start, end, begin, stop = [*frame.f_code.co_positions()][frame.f_lasti // 2]
    if start is None or end is None or begin is None or stop is None:
        return None
    lines = [
        linecache.getline(frame.f_code.co_filename, number, frame.f_globals).encode()
        for number in range(start, end + 1)
    ]
    lines[-1] = lines[-1][:stop]
    lines[0] = lines[0][begin:]
    call = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    return call.func if isinstance(call, ast.Call) else None


def _value(expression: ast.expr, frame: FrameType) -> Any:
    """What an expression stands for, or None where only a call could tell."""
    if isinstance(expression, ast.Attribute):
        return names_in_code.attribute(_value(expression.value, frame), expression.attr)
    if not isinstance(expression, ast.Name):
        return None
    code, name = frame.f_code, expression.id
    if name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        return frame.f_locals.get(name)
    return frame.f_globals.get(name)


def _place(file: str, line: int) -> str:
    here = os.getcwd() + os.sep
    return f"{file.removeprefix(here)}:{line}"


def called() -> str:
    """The function that the program calls and where it is defined; or where it is called."""
    frame = _program()
    if frame is None:
        return ""
    try:
        expression = _expression(frame)
        value = None if expression is None else _value(expression, frame)
        code = definitions.code_of(value, getattr)
    except Exception:    # whatever stands there, the place is known
        expression = code = None
    if expression is None or code is None or code.co_filename.startswith(_INNER):
        named = "" if expression is None else f" of {ast.unparse(expression)}"
        return f"{named}, called at {_place(frame.f_code.co_filename, frame.f_lineno)}"
    return f" of {code.co_qualname}, defined at {_place(code.co_filename, code.co_firstlineno)}"
