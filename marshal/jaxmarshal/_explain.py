"""`explain`: would this call take the fast path, and if not, what is in its way?"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import MethodType
from typing import Any

import jax

from jaxmarshal import (
    _device_put,
    _execute,
    _install,
    _jit,
    _jit_ask,
    _reach,
    _reference,
    _replay,
    _stats,
    fronts,
)
from jaxmarshal.reasons import PUBLIC, REASONS, reason_for

#: A partial of a partial of a method, and so on.
_MOST_LAYERS = 50

#: The path of an argument, the recorded word and the found one; None where there is none to name.
_Details = tuple[str | None, Any, Any]


@dataclass(frozen=True, repr=False)
class Explanation:
    """The answer of `explain`.

    Attributes:
      hit: would the call take the fast path?
      entry_point: its name in `stats()`, or None for a function that is no entry point itself.
      reason: the name of the reason in `stats()`; "hit" for a hit, "leads_to_others" for a function
        that calls entry points, "unknown_function" if it seems to call none.
      meaning: the reason in words.
      advice: what you can do about it.
      leaf: the path of the argument in question, such as `args[0]['w']`, or None.
      recorded: the recorded word of the guard for this argument, or None.
      found: the word that this argument has instead, or None.
      installed: does this function go through jaxmarshal now? If not, `hit` says what the call
        would be once `install()` was called.
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

    def __str__(self) -> str:
        if self.hit:
            lines = [f"{self.entry_point}: a hit."]
        elif self.entry_point is None:
            lines = [self.meaning]
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
        if not self.installed:
            lines.append("jaxmarshal is not installed: as it is, the call goes to JAX itself.")
        return "\n".join(lines)

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
    numbers, names = _jit_ask.static_arguments(f)
    dynamic = {
        f"args[{i}]": x
        for i, x in enumerate(args)
        if i not in numbers and i - len(args) not in numbers
    }
    dynamic |= {f"kwargs[{name!r}]": kwargs[name] for name in sorted(kwargs) if name not in names}
    return _leaf(index, tuple(dynamic.values()), tuple(dynamic))


#: Behind the path of an argument that a wrapper has prepared.
_INSIDE = "of the jitted function inside"


def _unwrap(
    f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function that is called in the end: `partial` objects and bound methods opened."""
    for _ in range(_MOST_LAYERS):
        method = _reach.bound(f)
        if isinstance(f, partial) or _reach.is_partial(f):
            f, args, kwargs = f.func, (*f.args, *args), {**f.keywords, **kwargs}
        elif method is not None:
            f, args = method[0], args if method[1] is None else (method[1], *args)
        else:
            break
    if isinstance(f, MethodType) and (
        _install.entry_point_of(f.__func__) is not None or _jit.is_jitted(f.__func__)
    ):
        return f.__func__, (f.__self__, *args), kwargs
    if f is operator.getitem and args and type(args[0]) is _reference.ArrayImpl:
        return _reference.array_getitem, args, kwargs
    called_by = _replay.method_calling(f)
    if called_by is not None:
        return called_by, (f, *args), kwargs
    for cls, name in (
        (_reference.Compiled, "compiled_call"),
        (_reference.ExecuteReplicated, "execute_replicated_call"),
    ):
        if cls is not None and isinstance(f, cls):
            return getattr(_reference, name), (f, *args), kwargs
    if not kwargs and _install.entry_point_of(f) is None and fronts.explained(f) is None:
        f = _reach.inner_jitted(f) or f
    return f, args, kwargs


def _details(name: str, code: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Details:
    """The argument that is in the way, and the words in question, where they can be told."""
    found: tuple[Any, ...]
    if name == "device_put":
        found = (*_stats.look(_device_put.probe, *args, **kwargs), None, None)
        tree: tuple[Any, ...] = (args[0] if args else kwargs.get("x"),)
        names: tuple[str, ...] = ("x",)
    elif name == "compiled_call":
        found = _stats.look(_execute.probe_compiled, args[0], args[1:], kwargs)
        tree, names = (args[1:], kwargs), ("args", "kwargs")
    else:
        return None, None, None
    if found[0] != code:
        return None, None, None
    return _leaf(found[1], tree, names), found[2], found[3]


def _explain_jitted(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    code = _stats.ask("jit", _jit.call_jitted, f, args, kwargs)
    found = _stats.look(_jit_ask.probe, f, args, kwargs)
    details: _Details = None, None, None
    if found[0] == code:
        details = _leaf_of_jitted(f, found[1], args, kwargs), found[2], found[3]
    return _answer(f, "jit", code, details, _jit.uses_plans(f))


def _answer(
    f: Any, entry_point: str, code: int | None, details: _Details, installed: bool
) -> Explanation:
    if code is None:    # a call that is not counted
        return _about_others(f)
    reason = reason_for(entry_point, REASONS[code].name)
    return Explanation(
        code == 0, entry_point, reason.name, reason.meaning, reason.advice, *details, installed
    )


def _about_others(f: Any) -> Explanation:
    """What is known of a function that is no entry point."""
    found = _reach.reached(f)
    name = getattr(f, "__name__", type(f).__name__)
    if not found:
        return Explanation(
            False,
            None,
            "unknown_function",
            f"{name} is no entry point of jaxmarshal, and nothing that it names leads to one.",
            "Ask about device_put, a jitted function, or a function compiled ahead of time; or "
            "make the call, and print jaxmarshal.report().",
        )
    texts = ", ".join(f"{PUBLIC[entry]} ({other})" for entry, other in found)
    return Explanation(
        False,
        None,
        "leads_to_others",
        f"{name} is no entry point itself; what it names leads to: {texts}.",
        "Ask about these with the arguments that they get; or make the call a few times, and print "
        "jaxmarshal.report().",
    )


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
        `bind`, ...; also as a `functools.partial`. Of any other function the answer names the
        entry points that it leads to, as far as its code shows them.
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
        code = _stats.ask(name, function, f, *args, **kwargs)
        return _answer(f, name, code, (None, None, None), installed)
    inside = _reach.called_by_wrapper(f, args, kwargs)
    if inside is not None:
        answer = _explain_jitted(*inside)
        return answer if answer.leaf is None else replace(answer, leaf=f"{answer.leaf} {_INSIDE}")
    if _jit.is_jitted(f):
        return _explain_jitted(f, args, kwargs)
    entry = _install.entry_point_of(f)
    if entry is None or not entry.active:
        return _about_others(f)
    place = _install.place_of(f)
    code = _stats.ask(entry.name, place.accelerated, *args, **kwargs)
    if place.holder is None:
        installed = f is place.accelerated
    else:
        installed = entry.name in _install.installed_names()
    details = _details(entry.name, code, args, kwargs) if code else (None, None, None)
    return _answer(f, entry.name, code, details, installed)
