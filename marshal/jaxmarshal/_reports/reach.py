"""Which entry points does a function lead to? A look at what it is made of.

What is found is what a function names or holds: jitted functions, functions of JAX, `device_put`.
What it gets as an argument, or computes, is not seen. Only wrappers of known libraries are called
(`called_by_wrapper`), up to the jitted function inside.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from jaxmarshal import fronts
from jaxmarshal._core.entries import jit, public_functions
from jaxmarshal._jax import patching, private
from jaxmarshal._reports import names_in_code
from jaxmarshal.reasons import PUBLIC

MOST_SEEN = 300
MOST_FOUND = 30

#: The name that stands for operators, where entry points are named.
OPERATORS = "operators"

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
    """The entry point that programs call with this, or None."""
    if jit.is_jitted(value) or (private.ufunc and type(value) is private.ufunc):
        return "jit"
    if private.Compiled is not None and isinstance(value, private.Compiled):
        return "compiled_call"
    of_library = fronts.explained(value)
    if of_library is not None:
        return of_library[0]
    called = public_functions.method_calling(value)
    entry = patching.entry_point_of(value) or patching.entry_point_of(called)
    if entry is not None and entry.name in PUBLIC and entry.name != "bind":
        return entry.name
    if _is_operation(value) and any(map(jit.is_jitted, names_in_code.values(value))):
        return "jit"
    return None


def _package(function: FunctionType) -> str:
    """The package in which the code of a Python function is."""
    return str(function.__globals__.get("__name__")).partition(".")[0]


def _is_jaxs(value: Any) -> bool:
    """Is it a Python function whose code is JAX's, whatever it is called?"""
    return isinstance(value, FunctionType) and _package(value) == "jax"


def _is_operation(value: Any) -> bool:
    return _is_jaxs(value) and str(value.__globals__["__name__"]).startswith(_OPERATIONS)


def call_of(value: Any) -> Any:
    """The `__call__` that the class of an object defines, as the class gives it; or None."""
    if any("__call__" in vars(base) for base in type(value).__mro__):
        return getattr(type(value), "__call__", None)    # noqa: B004
    return None


def calls_entry_point(value: Any) -> bool:
    """Is the `__call__` of an object's class an entry point, or a wrapper of a jitted function?"""
    if type(value).__module__.partition(".")[0] in ("jax", "jaxlib", "builtins"):
        return False
    call = call_of(value)
    return (
        jit.is_jitted(call)
        or fronts.explained(call) is not None
        or patching.entry_point_of(call) is not None
        or _jitted_inside(call) is not None
    )


def _parts_of_object(value: Any) -> Iterator[Any]:
    """What an object of a class with a `__call__` is made of, what it calls first."""
    attributes = getattr(value, "__dict__", None)
    attributes = attributes if isinstance(attributes, dict) else {}
    wrapped = [attributes[name] for name in _WRAPPED if name in attributes]
    library = type(value).__module__.partition(".")[0]
    if not (wrapped and library in _WRAPPERS) and library != "jax":
        yield call_of(value)
    yield from wrapped or attributes.values()


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
            yield from names_in_code.values(value)
    elif type(value) in (tuple, list):
        yield from value[:MOST_SEEN]
    elif not isinstance(value, (type, ModuleType, BuiltinFunctionType)):
        yield from _parts_of_object(value)


def _may_call(value: Any) -> bool:
    """May it be a callable, or hold some?"""
    return callable(value) or type(value) in (tuple, list)


def reached(function: Any) -> dict[str, list[str]]:
    """The names of what a call would come to, by entry point, as far as is seen.

    Under `OPERATORS` are the operators of the function, and of others in the same package.
    """
    found: dict[str, dict[str, None]] = {}
    home = None
    waiting, seen = [function], {id(function)}
    keep = [function]    # so that no address is used twice
    if _is_operation(function):
        waiting = [*names_in_code.values(function)]
    while waiting and len(seen) < MOST_SEEN and sum(map(len, found.values())) < MOST_FOUND:
        value = waiting.pop(0)
        entry_point = _entry_point(value)
        if entry_point is not None:
            found.setdefault(entry_point, {})[_name(value)] = None
            continue
        if isinstance(value, FunctionType) and not _is_jaxs(value):
            home = home or _package(value)
            for sign in names_in_code.operators(value) if _package(value) == home else ():
                found.setdefault(OPERATORS, {})[sign] = None
        for part in _parts(value):
            if id(part) not in seen and (_may_call(part) or hasattr(part, "__dict__")):
                seen.add(id(part))
                keep.append(part)
                waiting.append(part)
    return {entry: list(names) for entry, names in found.items()}


def jitted_behind(method: Any) -> Any:
    """The jitted function that a method of JAX hands its arguments to, where it names just one."""
    if not isinstance(method, FunctionType):
        return None
    found = {id(value): value for value in names_in_code.values(method) if jit.is_jitted(value)}
    return found.popitem()[1] if len(found) == 1 else None


def inner_jitted(function: Any) -> Any:
    """The jitted function that a `custom_jvp` or `custom_vjp` calls with its own arguments.

    None for anything else.
    """
    if type(function).__module__.partition(".")[0] != "jax":
        return None
    attributes = getattr(function, "__dict__", {})
    inner = attributes.get("fun")
    return inner if jit.is_jitted(inner) and not attributes.get("nondiff_argnums") else None


class _Reached(BaseException):
    """Raised where a wrapper calls the jitted function inside; never seen by anybody else."""


def _jitted_inside(wrapper: Any) -> Any:
    """The jitted function that an object of a known library holds, and nothing else calls."""
    if type(wrapper).__module__.partition(".")[0] not in _WRAPPERS:
        return None
    attributes = getattr(wrapper, "__dict__", {})
    found = [value for value in attributes.values() if jit.is_jitted(value)]
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
    from jaxmarshal._core.entries import watch

    thread = threading.get_ident()

    def make_hook(_: Any) -> Any:
        def hook(call: Any) -> Any:
            if threading.get_ident() != thread:
                return call()
            raise _Reached(call.arguments())

        return hook

    if not watch.watch(jitted, make_hook, always=True):
        return None
    try:
        wrapper(*args, **kwargs)
    except _Reached as reached:
        return (jitted, *reached.args[0])
    finally:
        watch.release(jitted)
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
    if jit.is_jitted(owner) and _name(function) == "__call__":
        return owner, None
    if jit.is_jitted(inner) or _jitted_inside(inner) is not None:
        return inner, owner
    return None
