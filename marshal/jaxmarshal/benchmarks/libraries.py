"""Cases of functions that wrap `jax.jit` for any pytrees: jaxmarshal's own, and libraries'."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import jax

import jaxmarshal
from jaxmarshal import fronts
from jaxmarshal.benchmarks import inputs
from jaxmarshal.benchmarks.case import Call, Case, Sides
from jaxmarshal.fronts import filtered


def _function(tree: Any, scale: Any) -> Any:
    return [jax.tree.leaves(tree)[0] * scale]


def _arguments(count: int) -> tuple[Any, ...]:
    """A tree of arrays, and a number that is static."""
    return inputs.tree_of("dict", inputs.leaves("arrays", count)), 3


def _own(count: int) -> Sides:
    """Ours, over its Python alone on JAX's own `jit`."""
    plain, ours = jaxmarshal.filter_jit(_function), jaxmarshal.filter_jit(_function)
    plain._cached = jax.jit(plain._cached.__wrapped__, static_argnums=2)
    args = _arguments(count)
    return Sides(partial(filtered.reference_call, plain, *args), partial(ours, *args))


def _equinox(count: int) -> Call:
    return partial(import_module("equinox").filter_jit(_function), *_arguments(count))


def _nnx(count: int) -> Call:
    nnx = import_module("flax.nnx")
    return partial(nnx.jit(_function, static_argnums=1), *_arguments(count))


def _installed(make: Callable[[int], Call], count: int) -> Sides:
    call = make(count)
    return Sides(call, call, None, True)


_LIBRARIES: dict[str, Callable[[int], Call]] = {"equinox_filter_jit": _equinox, "nnx_jit": _nnx}


def front_cases() -> Iterator[Case]:
    """Calls with trees of arrays and one static leaf; of the libraries that are there."""
    for count in (1, 100):
        yield Case(
            f"filter_jit, dict of {count} arrays", filtered.NAME, partial(_own, count),
            leaves=count, least_speedup=1.0,
        )  # fmt: skip
    for front in fronts.FRONTS:
        if fronts.why_inactive(front) is not None:
            continue
        for count in (1, 100):
            yield Case(
                f"{front.name}, dict of {count} arrays", front.name,
                partial(_installed, _LIBRARIES[front.name], count), leaves=count,
                least_speedup=1.0,
            )  # fmt: skip
