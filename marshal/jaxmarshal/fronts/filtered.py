"""`jaxmarshal.filter_jit`: `jax.jit` for arguments and results that are any pytrees.

Leaves that are arrays are traced; all others are static. The Python code below is the reference: it
performs each call that is not recognised, and all that is recorded is seen while it does. The
arguments go to the jitted function as `make_filtered` reads them: two dicts of arrays, what is
donated and what is kept, and the static parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any, Literal, TypeAlias, get_args, overload

import jax
import numpy as np

from jaxmarshal._core.entries import filtered, jit
from jaxmarshal._jax import private
from jaxmarshal._reports import counting

__all__ = ["FilterJit", "filter_jit"]

Donate: TypeAlias = Literal["none", "all", "all-except-first"]

NAME = "filter_jit"
counting.register(NAME)

_HOLE = object()    # where an array is, among what a result has beside its arrays


class _Nothing:
    """Of no object in any tree: libraries have one for attributes that are missing."""


class _Statics(tuple[Any, ...]):
    """The static parts of a call: (leaves, treedef) of function, first and other arguments.

    Equal only where the leaves are of equal types too: 1, 1.0 and True are three values.
    """

    __slots__ = ()

    def _types(self) -> list[type]:
        return [type(leaf) for leaves, _ in self for leaf in leaves]

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is _Statics and tuple.__eq__(self, other)
            and self._types() == other._types()
        )  # fmt: skip

    __hash__ = tuple.__hash__


class _Shape:
    """What a result has beside its arrays: its treedef and leaves. A pytree without leaves."""

    def __init__(self, value: tuple[Any, tuple[Any, ...]]) -> None:
        self.value = value


jax.tree_util.register_pytree_node(_Shape, lambda shape: ((), shape), lambda shape, _: shape)


def is_array(leaf: Any) -> bool:
    """Is a leaf traced? JAX's arrays and tracers, and arrays and scalars of numpy."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _split(tree: Any) -> tuple[tuple[Any, ...], tuple[tuple[Any, ...], Any]]:
    """(arrays, None for other leaves), and ((other leaves, None for arrays), treedef)."""
    leaves, treedef = jax.tree_util.tree_flatten(tree)
    arrays = [is_array(leaf) for leaf in leaves]
    return (
        tuple(leaf if array else None for leaf, array in zip(leaves, arrays, strict=True)),
        (
            tuple(None if array else leaf for leaf, array in zip(leaves, arrays, strict=True)),
            treedef,
        ),
    )


def _join(arrays: tuple[Any, ...], static: tuple[tuple[Any, ...], Any]) -> Any:
    """The tree that was split."""
    leaves, treedef = static
    return jax.tree_util.tree_unflatten(
        treedef,
        [array if leaf is None else leaf for array, leaf in zip(arrays, leaves, strict=True)],
    )


def _put_together(arrays: Any, value: tuple[Any, tuple[Any, ...]]) -> Any:
    """A result, of its arrays and of what it has beside them."""
    treedef, leaves = value
    rest = iter(arrays)
    return jax.tree_util.tree_unflatten(
        treedef, [next(rest) if leaf is _HOLE else leaf for leaf in leaves]
    )


def _on_arrays(
    donated: dict[str, Any], kept: dict[str, Any], static: _Statics
) -> tuple[tuple[Any, ...], _Shape]:
    """Call the function of `static`, while JAX traces: the arrays of its result, and all else."""
    arrays = {**donated, **kept}
    function = _join(arrays["fun"], static[0])
    first = _join(arrays["first"], static[1])
    rest, by_name = _join(arrays["rest"], static[2])
    result = function(*(first, *rest)[:-1], **by_name)
    leaves, treedef = jax.tree_util.tree_flatten(result)
    found = tuple(leaf for leaf in leaves if is_array(leaf))
    return found, _Shape((treedef, tuple(_HOLE if is_array(leaf) else leaf for leaf in leaves)))


def _jitted(function: Callable[..., Any], donates: bool) -> Any:
    """A jitted function of its own, which JAX's messages call as the user's.

    Where something is donated, a cache of JAX's keeps the static parts of calls.
    """

    def on_arrays(donated: Any, kept: Any, static: Any) -> Any:
        return _on_arrays(donated, kept, static)

    for name in ("__name__", "__qualname__"):
        setattr(on_arrays, name, getattr(function, name, type(function).__name__))
    return jit.jit(on_arrays, donate_argnums=0 if donates else (), static_argnums=2)


def reference_call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call the function with what is static in its arguments, compiled for it."""
    bound = self._signature.bind(*args, **kwargs)
    args = (*bound.args, None)    # so that there always is a first one
    arrays: dict[str, dict[str, Any]] = {"donated": {}, "kept": {}}
    of_first, static_first = _split(args[0])
    of_rest, static_rest = _split((args[1:], bound.kwargs))
    arrays["donated" if self.donate_first else "kept"]["first"] = of_first
    arrays["donated" if self.donate_rest else "kept"].update(fun=self._dynamic_fun, rest=of_rest)
    statics = _Statics((self._static_fun, static_first, static_rest))
    found, shape = self._cached(arrays["donated"], arrays["kept"], statics)
    return _put_together(found, shape.value)


class FilterJit:
    """A function made by `jaxmarshal.filter_jit`. As a method it gets its instance first."""

    def __init__(self, function: Callable[..., Any], donate: Donate) -> None:
        self.__wrapped__ = function
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            if hasattr(function, name):
                setattr(self, name, getattr(function, name))
        self._signature = inspect.signature(function)
        self._dynamic_fun, self._static_fun = _split(function)
        self.donate_first = donate == "all"
        self.donate_rest = donate != "none"
        self._cached = _jitted(function, self.donate_rest)
        self.filter_warning = False

    __call__ = reference_call

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<filter_jit of {self.__wrapped__!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        donate = "all" if self.donate_first else "all-except-first" if self.donate_rest else "none"
        return FilterJit, (self.__wrapped__, donate)

    def clear_cache(self) -> None:
        """Forget what was compiled for it."""
        self._cached.clear_cache()


accelerated: Any = None
if private.HAVE_EAGER and not private.why_not_supported():
    accelerated = FilterJit.__call__ = filtered.make_front(  # type: ignore[method-assign]
        NAME, FilterJit, reference_call, [jax.tree_util], lambda cls: None, lambda cls: True,
        _put_together, _Nothing(), (), marks=False, by_type=True,
    )  # fmt: skip


@overload
def filter_jit(fun: Callable[..., Any], *, donate: Donate = "none") -> FilterJit: ...


@overload
def filter_jit(*, donate: Donate = "none") -> Callable[[Callable[..., Any]], FilterJit]: ...


def filter_jit(fun: Callable[..., Any] | None = None, *, donate: Donate = "none") -> Any:
    """Compile a function whose arguments and result may be any pytrees.

    Leaves that are arrays (`jax.Array`, `numpy.ndarray`, numpy scalars) are traced. All other
    leaves are static: functions, strings, Python's numbers. A call with other static leaves is
    traced anew; they are compared by type, hash and equality. The same goes for `fun` itself where
    it is a pytree that is called. What the result has beside arrays is what the function returned
    when it was traced. Calls are accelerated without `install()`.

    Args:
      fun: the function. Left out, `filter_jit` is a decorator with options.
      donate: "all" donates every array among the arguments and in `fun`; "all-except-first" all but
        those of the first argument; "none", the default, nothing.

    Returns:
      A `FilterJit`, which is called as `fun` is, and is a method where it stands in a class.

    Raises:
      TypeError: `fun` cannot be called.
      ValueError: `donate` is none of the three; in a call, a static leaf has no hash.
    """
    if donate not in get_args(Donate):
        raise ValueError(f"donate is one of {', '.join(get_args(Donate))}, not {donate!r}")
    if fun is None:
        return lambda function: filter_jit(function, donate=donate)
    if not callable(fun):
        raise TypeError(f"filter_jit takes a function, not {type(fun).__name__}")
    return FilterJit(fun, donate)
