"""Which entry points does a function lead to? A look at what it is made of.

What is found is what a function names or holds: jitted functions, functions of JAX, `device_put`.
What it gets as an argument, or computes, is not seen. Only wrappers of known libraries are called
(`called_by_wrapper`), up to the jitted function inside.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from jaxmarshal import _install, _jit, _reference
from jaxmarshal.reasons import PUBLIC

MOST_SEEN = 300
MOST_FOUND = 8

#: Attributes under which wrappers keep what they wrap.
_WRAPPED = ("_cached", "jitted_fn", "__wrapped__", "fun", "func", "_fun", "__func__")

#: Libraries whose wrappers of a jitted function prepare its arguments, call it, and do no more.
_WRAPPERS = frozenset({"equinox", "flax"})

#: The modules of JAX that have operations in them; others flatten trees, transform and the like.
_OPERATIONS = tuple(
    prefix + name
    for prefix in ("jax.", "jax._src.")
    for name in ("lax", "numpy", "nn", "random", "scipy", "image")
)


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", type(value).__name__))


def _entry_point(value: Any) -> str | None:
    """The entry point to which a call of this comes at once, or None."""
    if _jit.is_jitted(value):
        return "jit"
    if _reference.Compiled is not None and isinstance(value, _reference.Compiled):
        return "compiled_call"
    entry = _install.entry_point_of(value)
    if entry is not None and entry.name in PUBLIC and entry.name != "bind":
        return entry.name
    if _is_operation(value) and not hasattr(value, "__wrapped__"):
        return "bind"    # most of them perform operations
    kind = type(value)
    if kind.__name__ == "ufunc" and kind.__module__.partition(".")[0] == "jax":
        return "jit"
    return None


def _is_jaxs(value: Any) -> bool:
    """Is it a Python function whose code is JAX's, whatever it is called?"""
    if not isinstance(value, FunctionType):
        return False
    return str(value.__globals__.get("__name__")).partition(".")[0] == "jax"


def _is_operation(value: Any) -> bool:
    return _is_jaxs(value) and str(value.__globals__["__name__"]).startswith(_OPERATIONS)


def _names(code: CodeType) -> set[str]:
    """The names that code uses, and the code inside of it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _used(function: FunctionType) -> Iterator[Any]:
    """What a Python function names: globals, attributes of modules among them, its closure."""
    names = _names(function.__code__)
    for name in sorted(names):
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            yield from (vars(value)[other] for other in sorted(names) if other in vars(value))
        elif value is not None:
            yield value
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:    # it is empty still
            continue


def _parts(value: Any) -> Iterator[Any]:
    """What a callable is made of."""
    if isinstance(value, partial):
        yield value.func
    elif isinstance(value, MethodType):
        yield value.__func__
        yield value.__self__
    elif isinstance(value, FunctionType):
        yield from (vars(value)[name] for name in _WRAPPED if name in vars(value))
        if not _is_jaxs(value):
            yield from _used(value)
    elif not isinstance(value, (type, ModuleType, BuiltinFunctionType)):
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            wrapped = [attributes[name] for name in _WRAPPED if name in attributes]
            yield from wrapped or attributes.values()
        call = vars(type(value)).get("__call__")
        if isinstance(call, FunctionType) and call.__module__.partition(".")[0] != "jax":
            yield call


def reached(function: Any) -> list[tuple[str, str]]:
    """The (entry point, name) of what a call of the function would come to, as far as is seen."""
    found: dict[tuple[str, str], None] = {}
    waiting, seen = [function], {id(function)}
    keep = [function]    # so that no address is used twice
    while waiting and len(seen) < MOST_SEEN and len(found) < MOST_FOUND:
        value = waiting.pop(0)
        entry_point = _entry_point(value)
        if entry_point is not None:
            found[entry_point, _name(value)] = None
            continue
        for part in _parts(value):
            if id(part) not in seen and (callable(part) or hasattr(part, "__dict__")):
                seen.add(id(part))
                keep.append(part)
                waiting.append(part)
    return list(found)


def inner_jitted(function: Any) -> Any:
    """The jitted function that a `custom_jvp` or `custom_vjp` calls with its own arguments.

    None for anything else.
    """
    if type(function).__module__.partition(".")[0] != "jax":
        return None
    attributes = getattr(function, "__dict__", {})
    inner = attributes.get("fun")
    return inner if _jit.is_jitted(inner) and not attributes.get("nondiff_argnums") else None


class _Reached(BaseException):
    """Raised where a wrapper calls the jitted function inside; never seen by anybody else."""


def _jitted_inside(wrapper: Any) -> Any:
    """The jitted function that an object of a known library holds, and nothing else calls."""
    if type(wrapper).__module__.partition(".")[0] not in _WRAPPERS:
        return None
    attributes = getattr(wrapper, "__dict__", {})
    found = [value for value in attributes.values() if _jit.is_jitted(value)]
    return found[0] if len(found) == 1 else None


def called_by_wrapper(
    wrapper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The jitted function inside of a wrapper, with the arguments that the wrapper gives it.

    The wrapper is called, and stopped there: the jitted function does not run. None for anything
    else than a wrapper of `_WRAPPERS`.
    """
    jitted = _jitted_inside(wrapper)
    if jitted is None:
        return None
    from jaxmarshal import _watch

    thread = threading.get_ident()

    def make_hook(_: Any) -> Any:
        def hook(call: Any) -> Any:
            if threading.get_ident() != thread:
                return call()
            raise _Reached(call.arguments())

        return hook

    if not _watch.watch(jitted, make_hook, always=True):
        return None
    try:
        wrapper(*args, **kwargs)
    except _Reached as reached:
        return (jitted, *reached.args[0])
    finally:
        _watch.release(jitted)
    return None


def is_partial(function: Any) -> bool:
    """Is it a partial of a known library's own kind?"""
    return type(function).__module__.partition(".")[0] in _WRAPPERS and all(
        hasattr(function, name) for name in ("func", "args", "keywords")
    )


def bound(function: Any) -> tuple[Any, Any] | None:
    """What a bound method calls, and with what in front; of `f.__call__` too. Or None."""
    inner, owner = getattr(function, "__func__", None), getattr(function, "__self__", None)
    if owner is None:
        return None
    if type(function).__module__.partition(".")[0] not in (*_WRAPPERS, "builtins"):
        return None
    if _jit.is_jitted(owner) and _name(function) == "__call__":
        return owner, None
    if _jit.is_jitted(inner) or _jitted_inside(inner) is not None:
        return inner, owner
    return None
