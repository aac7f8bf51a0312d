"""How often a packed step gives the same bits: every jitted step of the loops, packed and not.

    python bench/programs/packed_bits.py [LOOP ...] [--steps 5]

While a loop runs, each call of a function that it has jitted and whose first argument comes back,
alone or as the first of a pair, is also made with `jaxmarshal.carry`, from the same arguments.
Results are compared bit for bit, and the largest difference is given, relative to the largest
number of the leaf.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from jaxmarshal import carry

HERE = Path(__file__).resolve().parent
LOOPS = sorted(path.stem for path in (HERE / "loops").glob("*.py"))

_jit = jax.jit


class Counts:
    """What was compared of one loop."""

    def __init__(self) -> None:
        self.leaves = self.equal = self.calls = 0
        self.furthest = 0.0

    def compare(self, expected: Any, got: Any) -> None:
        """Count the leaves of a call and those of equal bits."""
        self.calls += 1
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
            if not isinstance(a, jax.Array):
                continue
            if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
                a, b = jax.random.key_data(a), jax.random.key_data(b)
            x, y = np.asarray(a), np.asarray(b)
            self.leaves += 1
            self.equal += x.tobytes() == y.tobytes()
            if x.size and np.issubdtype(x.dtype, np.floating):
                scale = float(np.max(np.abs(x))) or 1.0
                self.furthest = max(self.furthest, float(np.max(np.abs(x - y))) / scale)


class Compared:
    """In the place of a jitted function: calls it, and compares what a carry gives."""

    def __init__(self, function: Any, options: dict[str, Any], counts: Counts) -> None:
        functools.update_wrapper(self, function)
        options = {k: v for k, v in options.items() if not k.startswith("donate_")}
        self._plain = _jit(function, **options)
        static = {k: v for k, v in options.items() if k.startswith("static_")}
        self._carry: Any = None
        if set(options) <= {"static_argnums", "static_argnames"}:
            with contextlib.suppress(ValueError):    # its first argument is static
                self._carry = carry(function, least=1, **static)
        self._counts = counts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        expected = self._plain(*args, **kwargs)
        traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs)))
        if self._carry is not None and args and jax.tree.leaves(args[0]) and not traced:
            try:
                got = self._carry(*args, **kwargs)
            except TypeError:    # its first argument does not come back
                self._carry = None
                return expected
            got = (got[0].unpack(), got[1]) if type(got) is tuple else got.unpack()
            self._counts.compare(expected, got)
        return expected

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self._plain.__get__(instance, owner)


def comparing(counts: Counts, module: str) -> Callable[..., Any]:
    """In the place of `jax.jit` for the functions of a loop; those of libraries stay."""

    def jit(function: Any = None, /, **options: Any) -> Any:
        if function is None:
            return lambda function: jit(function, **options)
        if getattr(function, "__module__", None) != module:
            return _jit(function, **options)
        return Compared(function, options, counts)

    return jit


def measure(name: str, steps: int) -> Counts:
    """Run some steps of a loop."""
    counts = Counts()
    jax.jit = comparing(counts, name)
    try:
        loop = importlib.import_module(name)
        state, step = loop.make()
        for i in range(steps):
            state, _ = step(state, i)
    finally:
        jax.jit = _jit
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("loops", nargs="*", metavar="LOOP")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    sys.path[:0] = [str(HERE), str(HERE / "loops")]
    print("| loop | calls | leaves | of equal bits | largest difference |")
    print("| --- | --- | --- | --- | --- |")
    for name in options.loops or LOOPS:
        try:
            counts = measure(name, options.steps)
        except Exception as error:
            print(f"| {name} | | | | {type(error).__name__}: {str(error)[:50]} |", flush=True)
            continue
        if counts.calls:
            share = f"{counts.equal / max(1, counts.leaves):.0%}"
            print(
                f"| {name} | {counts.calls} | {counts.leaves} | {share} | {counts.furthest:.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
