"""How often a packed step gives the same bits: every jitted step of the loops, packed and not.

    python bench/programs/packed_bits.py [LOOP ...] [--steps 5]

While a loop runs, each call of a function that it has jitted and that gives some of its arguments
back, alone or as the first of several results, is also made with `jaxmarshal.carry`, from the same
arguments. Results are compared bit for bit, and the largest difference is given, relative to the
largest number of the leaf. Each loop has a process of its own.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import subprocess
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

#: Why some loops have nothing to compare.
NOTHING = "no jitted function of it gives its arguments back"
IN_PLACE = "its states are changed in place"
REASONS = {
    "nnx_cached_partial": IN_PLACE, "nnx_train": IN_PLACE, "penzai_train": IN_PLACE,
    "gymnax_rollout": "its state comes back behind another result",
}  # fmt: skip

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


def carried(args: tuple[Any, ...], out: Any) -> tuple[int, int] | None:
    """(first of the arguments that a function gives back, how many; 0 for its only result)."""

    def kinds(value: Any) -> Any:
        leaves, structure = jax.tree.flatten(value)
        return structure, [getattr(x, "aval", None) for x in leaves]

    def data(value: Any) -> bool:
        return any(isinstance(x, jax.Array) for x in jax.tree.leaves(value))

    for first in range(len(args)):
        if data(args[first]) and kinds(args[first]) == kinds(out):
            return first, 0
        if type(out) is tuple:
            count = 0
            for given, result in zip(args[first:], out, strict=False):
                if not (data(given) and kinds(given) == kinds(result)):
                    break
                count += 1
            if count:
                return first, count
    return None


class Compared:
    """In the place of a jitted function: calls it, and compares what a carry gives."""

    def __init__(self, jit: Any, function: Any, options: dict[str, Any], counts: Counts) -> None:
        functools.update_wrapper(self, function)
        # Arguments that are donated could not be passed to both.
        options = {k: v for k, v in options.items() if not k.startswith("donate")}
        self._function = function
        self._plain = jit(function, **options)
        self.lower = getattr(self._plain, "lower", None)    # what it compiles is not compared
        self._carries: dict[Any, Any] = {}
        self._comparable = not options
        self._counts = counts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        expected = self._plain(*args, **kwargs)
        traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs)))
        where = carried(args, expected) if self._comparable and not traced else None
        if where is not None:
            first, count = where
            step = self._carries.get(where)
            if step is None:
                step = self._carries[where] = carry(self._step(first, count), least=1)
            end = first + max(count, 1)
            got = step(args[first:end], args[:first], args[end:], kwargs)
            got, rest = got if count else (got, ())
            got = got.unpack()
            self._counts.compare(expected, (*got, *rest) if count else got[0])
        return expected

    def _step(self, first: int, count: int) -> Callable[..., Any]:
        """The function as one of what it gives back, in the place that a carry has."""

        def step(state: Any, before: Any, after: Any, kwargs: Any) -> Any:
            out = self._function(*before, *state, *after, **kwargs)
            return (out[:count], out[count:]) if count else (out,)

        return step

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self._plain.__get__(instance, owner)


def comparing(plain: Any, counts: Counts) -> Callable[..., Any]:
    """In the place of `jax.jit` and the like for what a loop jits; what libraries jit stays."""

    def jit(function: Any = None, /, **options: Any) -> Any:
        if Path(sys._getframe(1).f_code.co_filename).parent != HERE / "loops":
            return plain(**options) if function is None else plain(function, **options)
        if function is None:
            return lambda function: Compared(plain, function, options, counts)
        return Compared(plain, function, options, counts)

    return jit


def measure(name: str, steps: int) -> Counts:
    """Run some steps of a loop."""
    counts = Counts()
    jax.jit = comparing(_jit, counts)
    try:
        import equinox

        equinox.filter_jit = comparing(equinox.filter_jit, counts)
    except ImportError:
        pass
    loop = importlib.import_module(name)
    state, step = loop.make()
    for i in range(steps):
        state, _ = step(state, i)
    return counts


def row(name: str, steps: int) -> str:
    """What is said of a loop."""
    try:
        counts = measure(name, steps)
    except Exception as error:
        return f"| {name} | | | | {type(error).__name__}: {str(error)[:60]} |"
    if not counts.calls:
        return f"| {name} | 0 | | | {REASONS.get(name, NOTHING)} |"
    share = f"{100 * counts.equal / max(1, counts.leaves):.0f} %"
    return f"| {name} | {counts.calls} | {counts.leaves} | {share} | {counts.furthest:.1e} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("loops", nargs="*", metavar="LOOP")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    sys.path[:0] = [str(HERE), str(HERE / "loops")]
    if len(options.loops) == 1:
        print(row(options.loops[0], options.steps), flush=True)
        return
    print(f"JAX {jax.__version__}\n")
    print("| loop | calls | leaves | of equal bits | largest difference |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for name in options.loops or LOOPS:
        subprocess.run(
            [sys.executable, str(Path(__file__)), name, "--steps", str(options.steps)], check=False
        )


if __name__ == "__main__":
    main()
