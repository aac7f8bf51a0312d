"""`explain`: would this call take the fast path, and if not, what is in its way?"""

from __future__ import annotations

import inspect
import operator
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import jax

from jaxmarshal import api, fronts
from jaxmarshal._core.entries import (
    device_put,
    executables,
    jit,
    jit_probe,
    public_functions,
    which_functions,
)
from jaxmarshal._jax import patching, private
from jaxmarshal._reports import counting, reach
from jaxmarshal.reasons import PUBLIC, REASONS, Reason, reason_for

#: A partial of a partial of a method, and so on.
_MOST_LAYERS = 50

#: Letters of a line, where sentences are wrapped.
_WIDTH = 100

#: Reasons of calls that jaxmarshal never sees: `install()` has no effect on them.
_NOT_COUNTED = frozenset({"excluded", "taken_before"})

#: The path of an argument, the recorded word and the found one; None where there is none to name.
_Details = tuple[str | None, Any, Any]


@dataclass(frozen=True, repr=False)
class Explanation:
    """The answer of `explain`.

    Attributes:
      hit: would the call take the fast path?
      entry_point: its name in `stats()`, or None for a function that is no entry point itself.
      reason: the name of the reason in `stats()`; "hit" for a hit; "excluded" for a function that
        `exclude()` left to JAX; "taken_before" for JAX's own object, taken before `install()`;
        "leads_to_others" for a function that calls entry points, "unknown_function" if it seems to
        call none.
      meaning: the reason in words.
      advice: what you can do about it.
      leaf: the path of the argument in question, such as `args[0]['w']`, or None.
      recorded: the recorded word of the guard for this argument, or None.
      found: the word that this argument has instead, or None.
      installed: does this function go through jaxmarshal now? If not, `hit` says what the call
        would be once `install()` was called.
      note: a sentence for who has not installed it, or empty.
    """

    hit: bool
    entry_point: str | None
    reason: str
    meaning: str
    advice: str
    leaf: str | None = None
    recorded: Any = None
    found: Any = None
    installed: bool = True
    note: str = ""

    def __str__(self) -> str:
        if self.hit:
            lines = [f"{self.entry_point}: a hit."]
        elif self.entry_point is None:
            lines = [self.meaning]
        elif self.reason in _NOT_COUNTED:
            lines = [f"{self.entry_point}: left to JAX. {self.meaning}"]
        else:
            lines = [f"{self.entry_point}: a miss ({self.reason})."]
            lines.append(self.meaning)
        if self.leaf is not None:
            lines.append(f"argument: {self.leaf}")
        if self.recorded is not None or self.found is not None:
            lines.append(f"recorded: {self.recorded}")
            lines.append(f"found:    {self.found}")
        if self.advice:
            lines.append(f"What to do: {self.advice}")
        if self.note:
            lines.append(self.note)
        return "\n".join(textwrap.fill(line, _WIDTH, break_long_words=False) for line in lines)

    __repr__ = __str__


def _paths(tree: Any, names: tuple[str, ...]) -> list[str]:
    """The path of every leaf of a tuple of trees, each path starting with its tree's name."""
    paths = []
    for name, part in zip(names, tree, strict=True):
        for path, _ in jax.tree_util.tree_flatten_with_path(part)[0]:
            paths.append(name + jax.tree_util.keystr(path))
    return paths


def _leaf(index: int, tree: Any, names: tuple[str, ...]) -> str | None:
    """The path of the argument with this number, if there is one."""
    paths = _paths(tree, names) if index >= 0 else []
    return paths[index] if 0 <= index < len(paths) else None


def _leaf_of_jitted(
    f: Any, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """The same for the arguments of a jitted function that are not static."""
    numbers, names = jit_probe.static_arguments(f)
    dynamic = {
        f"args[{i}]": x
        for i, x in enumerate(args)
        if i not in numbers and i - len(args) not in numbers
    }
    dynamic |= {f"kwargs[{name!r}]": kwargs[name] for name in sorted(kwargs) if name not in names}
    return _leaf(index, tuple(dynamic.values()), tuple(dynamic))


#: Behind the path of an argument that a wrapper has prepared.
_INSIDE = "of the jitted function inside"


#: The functions of `operator`, and the names of the methods that they call.
_OPERATORS: dict[Any, str] = {
    function: name
    for name in (
        "add", "and", "eq", "floordiv", "ge", "getitem", "gt", "invert", "le", "lshift", "lt",
        "matmul", "mod", "mul", "ne", "neg", "or", "pos", "pow", "rshift", "sub", "truediv", "xor",
    )
    for function in (getattr(operator, f"__{name}__"), getattr(operator, f"__i{name}__", None))
    if function is not None
}  # fmt: skip

#: The comparisons that Python makes where the array is the second operand.
_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def _method_of_operator(f: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """What an operator calls in the end, with its arguments; or both as they are."""
    name = _OPERATORS[f]
    for i, arg in enumerate(args[:2]):
        if type(arg) is private.ArrayImpl:
            called = _MIRRORED.get(name, f"r{name}") if i else name
            method = vars(type(arg)).get(f"__{called}__")
            if method is None:
                return f, args
            ordered = (arg, *args[:i], *args[i + 1 :])
            if which_functions.is_replayed(called, ordered):
                return method, ordered
            behind = reach.jitted_behind(method)
            return behind or method, args if behind and name not in _MIRRORED else ordered
    return f, args


def _unwrap(
    f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function that is called in the end: `partial` objects and bound methods opened."""
    for _ in range(_MOST_LAYERS):
        method = reach.bound(f)
        if isinstance(f, partial) or reach.is_partial(f):
            f, args, kwargs = f.func, (*f.args, *args), {**f.keywords, **kwargs}
        elif method is not None:
            f, args = method[0], args if method[1] is None else (method[1], *args)
        elif reach.calls_entry_point(f):
            f, args = reach.call_of(f), (f, *args)
        else:
            break
    if isinstance(f, MethodType) and (
        patching.entry_point_of(f.__func__) is not None or jit.is_jitted(f.__func__)
    ):
        return f.__func__, (f.__self__, *args), kwargs
    if isinstance(f, BuiltinFunctionType) and f in _OPERATORS and not kwargs:
        return *_method_of_operator(f, args), kwargs
    called_by = public_functions.method_calling(f)
    if called_by is not None:
        _check_signature(getattr(f, "__wrapped__", None), args, kwargs)
    if called_by is not None and not which_functions.is_left(f, args):
        return called_by, (f, *args), kwargs
    for cls, name in (
        (private.Compiled, "compiled_call"),
        (private.ExecuteReplicated, "execute_replicated_call"),
    ):
        if cls is not None and isinstance(f, cls):
            return getattr(private, name), (f, *args), kwargs
    if not kwargs and patching.entry_point_of(f) is None and fronts.explained(f) is None:
        f = reach.inner_jitted(f) or f
    return f, args, kwargs


def _details(name: str, code: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Details:
    """The argument that is in the way, and the words in question, where they can be told."""
    found: tuple[Any, ...]
    if name == "device_put":
        found = (*counting.look(device_put.probe, *args, **kwargs), None, None)
        tree: tuple[Any, ...] = (args[0] if args else kwargs.get("x"),)
        names: tuple[str, ...] = ("x",)
    elif name == "compiled_call":
        found = counting.look(executables.probe_compiled, args[0], args[1:], kwargs)
        tree, names = (args[1:], kwargs), ("args", "kwargs")
    else:
        return None, None, None
    if found[0] != code:
        return None, None, None
    return _leaf(found[1], tree, names), found[2], found[3]


def _explain_jitted(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    _check_signature(f, args, kwargs)
    if api.is_excluded(f):
        return _excluded()
    code = counting.ask("jit", jit.call_jitted, f, args, kwargs)
    found = counting.look(jit_probe.probe, f, args, kwargs)
    details: _Details = None, None, None
    if found[0] == code:
        details = _leaf_of_jitted(f, found[1], args, kwargs), found[2], found[3]
    return _answer(f, "jit", code, details, jit.uses_plans(f))


def _reason(entry_point: str, name: str) -> Reason:
    """The reason, in words that fit what the entry point has counted so far."""
    so_far = counting.snapshot()[entry_point]
    return reason_for(entry_point, name, so_far["hits"], so_far["misses_by_reason"].get(name, 0))


def _answer(
    f: Any, entry_point: str, code: int | None, details: _Details, installed: bool
) -> Explanation:
    if code is None:    # a call that is not counted
        return _about_others(f)
    reason = _reason(entry_point, REASONS[code].name)
    note = ""
    if not installed:
        what = f"the entry point {entry_point}" if patching.installed_names() else "jaxmarshal"
        note = f"{what} is not installed: as it is, the call goes to JAX itself."
    return Explanation(
        code == 0, entry_point, reason.name, reason.meaning, reason.advice, *details, installed,
        note,
    )


def _excluded() -> Explanation:
    return Explanation(
        False,
        "jit",
        "excluded",
        "Excluded by `exclude()`.",
        "Leave `exclude` out where calls of this function should be fast.",
        installed=False,
    )


def _taken_before(entry_point: str, name: str) -> Explanation:
    """Of JAX's own object, while jaxmarshal's is in its place."""
    return Explanation(
        False,
        entry_point,
        "taken_before",
        f"This {name} was taken from JAX before `install()` and is JAX's own.",
        "Import jaxmarshal.auto before the line that takes it, or call it through its module, "
        f"such as jnp.{name}.",
        installed=False,
    )


def _calls(found: dict[str, list[str]]) -> str:
    """What a function calls, in words."""
    texts = [
        PUBLIC[entry] if entry in _ALONE else f"{PUBLIC[entry]} ({', '.join(names)})"
        for entry, names in found.items()
        if entry != reach.OPERATORS
    ]
    if reach.OPERATORS in found:
        texts.append(f"operators ({', '.join(found[reach.OPERATORS])})")
    return ", ".join(texts)


#: Entry points whose words in `PUBLIC` are the name of a function.
_ALONE = frozenset({"device_put", "asarray", "array", "zeros", "ones", "full", "getitem"})


def _about_others(f: Any) -> Explanation:
    """What is known of a function that is no entry point."""
    found = reach.reached(f)
    name = getattr(f, "__name__", type(f).__name__)
    if not found:
        return Explanation(
            False,
            None,
            "unknown_function",
            f"{name} is not accelerated, and its code names nothing that is.",
            "Ask about device_put, a jitted function, or a function compiled ahead of time; or "
            "make the call, and print jaxmarshal.report().",
        )
    return Explanation(
        False,
        None,
        "leads_to_others",
        f"{name} is not accelerated itself. It calls: {_calls(found)}.",
        "Ask about these with the arguments that they get; or make the call a few times, and print "
        "jaxmarshal.report().",
    )


def _check_signature(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise the TypeError of a call that a Python function does not take."""
    if jit.is_jitted(f):
        f = f.__wrapped__
    if isinstance(f, MethodType):
        f, args = f.__func__, (f.__self__, *args)
    if not isinstance(f, FunctionType) or "__signature__" in vars(f):
        return
    try:
        inspect.signature(f, follow_wrapped=False).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{f.__qualname__}: {error}") from None


def explain(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Say whether `f(*args, **kwargs)` would take the fast path; nothing is executed.

    The call goes the way of any other up to the decision, and changes nothing on the way. The
    answer is what the next such call counts in `stats()`.

    A wrapper such as `eqx.filter_jit(f)` or `nnx.jit(f)` runs up to the jitted function inside,
    which does not run. The answer is about that function.

    Args:
      f: a jitted function, one that `flax.nnx.jit` made, the result of
        `jit(...).lower(...).compile()`, or any other entry point of jaxmarshal (JAX's function or
        jaxmarshal's): `device_put`, `jnp.zeros`, `jnp.asarray`, `operator.getitem`, a primitive's
        `bind`, an operator such as `operator.add`, ...; also as a `functools.partial`, or an object
        whose class has one of them as `__call__`. Of any other function the answer names the entry
        points that it calls, as far as its code shows them.
      *args: the positional arguments of the call.
      **kwargs: its keyword arguments.

    Returns:
      An `Explanation`; `print` shows it in words. It names only the first obstacle.

    Raises:
      TypeError: where the arguments do not fit the signature of the function.
    """
    f, args, kwargs = _unwrap(f, args, kwargs)
    of_library = fronts.explained(f)
    if of_library is not None:
        name, function, installed = of_library
        _check_signature(getattr(f, "__wrapped__", None), args, kwargs)
        code = counting.ask(name, function, f, *args, **kwargs)
        return _answer(f, name, code, (None, None, None), installed)
    inside = reach.called_by_wrapper(f, args, kwargs)
    if inside is not None:
        answer = _explain_jitted(*inside)
        return answer if answer.leaf is None else replace(answer, leaf=f"{answer.leaf} {_INSIDE}")
    if jit.is_jitted(f):
        return _explain_jitted(f, args, kwargs)
    entry = patching.entry_point_of(f)
    if entry is None or not entry.active:
        return _about_others(f)
    place = patching.place_of(f)
    _check_signature(place.original, args, kwargs)
    installed = entry.name in patching.installed_names()
    if place.holder is None and f is place.original and installed:
        return _taken_before(entry.name, getattr(f, "__name__", entry.name))
    if place.holder is None:
        installed = f is place.accelerated
    code = counting.ask(entry.name, place.accelerated, *args, **kwargs)
    details = _details(entry.name, code, args, kwargs) if code else (None, None, None)
    return _answer(f, entry.name, code, details, installed)
