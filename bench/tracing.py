"""Time to trace and to lower the models of JAX's `benchmarks/tracing_benchmark.py`.

    python bench/tracing.py tracing_benchmark.py [--models REGEX] [--rounds 60]
    valgrind --tool=callgrind python bench/tracing.py tracing_benchmark.py --only jax --rounds 1

JAX's own rows make their arguments, and compile what makes them, while the time runs; here they are
made before, JAX's caches are cleared before each sample, and the processor's time is taken. Both
sides run in this process and take turns of five samples, the first of which, when the interpreter
finds other methods than before, does not count. `--only` takes the samples of one side and prints
nothing, to have instructions counted: those of three rounds less those of one are ten samples.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import foreign
import jax
import jax.numpy as jnp

import jaxmarshal

SAMPLES = 5    # of a turn

#: Name, jitted function, arguments, and options of lowering.
Model = tuple[str, Any, tuple[Any, ...], dict[str, Any]]


def squares(n: int) -> Callable[[Any], Any]:
    """A function that multiplies its argument with itself, n times over."""
    functions = [lambda x: x * x for _ in range(n)]
    return functools.reduce(lambda a, b: lambda x: a(b(x)), functions)


def models(file: Any) -> Iterator[Model]:
    attention, arguments = file.make_mqa_splash_attention_fn_and_args()
    yield "splash attention", attention, arguments, {"lowering_platforms": ("tpu",)}
    yield "jnp.dot", jax.jit(jnp.dot), (jnp.arange(1024),) * 2, {}
    concat = jax.jit(functools.partial(jnp.concat, axis=0))
    yield "jnp.concat", concat, ((jnp.ones((1024, 1)),) * 2,), {}
    yield "128 multiplications", jax.jit(squares(128)), (jnp.ones(1024),), {}


def sample(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> list[float]:
    """Seconds to trace, and to lower what was traced."""
    jax.clear_caches()
    times = [time.process_time()]
    traced = function.trace(*arguments)
    times.append(time.process_time())
    traced.lower(**options)
    times.append(time.process_time())
    return [times[1] - times[0], times[2] - times[1]]


def count(model: Model, rounds: int) -> None:
    """Takes samples of one side, in a process that something else measures, and ends it."""
    for _ in range(SAMPLES * rounds):
        sample(*model[1:])
    os._exit(0)    # what JAX does at the end is no part of it


def compare(model: Model, rounds: int) -> None:
    """Takes samples of both sides in turn, and prints two rows."""
    taken: list[list[list[float]]] = [[], []]
    for turn in range(2 * rounds):
        side = (turn + turn // 2) % 2    # each side is first in every second round
        with jaxmarshal.installed() if side else contextlib.nullcontext():
            taken[side] += [sample(*model[1:]) for _ in range(SAMPLES)][1:]
    for step, word in enumerate(("trace", "lower")):
        plain, ours = ([times[step] for times in side] for side in taken)
        print(
            f"| {model[0]}, {word} | {len(plain)} | {min(plain) * 1e3:.3g}"
            f" | {min(ours) / min(plain):.2f}"
            f" | {statistics.median(ours) / statistics.median(plain):.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("file")
    parser.add_argument("--models", default="", help="a regular expression, for the names")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", choices=["jax", "jaxmarshal"], help="the samples of one side")
    options = parser.parse_args()
    if options.only == "jaxmarshal":
        jaxmarshal.install()
    if not options.only:
        print("| model | samples of a side | JAX ms | best by best | median by median |")
        print("| --- | --- | --- | --- | --- |")
    for model in models(foreign.load(options.file)[0]):
        if re.search(options.models, model[0]):
            gc.collect()
            gc.disable()
            (count if options.only else compare)(model, options.rounds)
            gc.enable()


if __name__ == "__main__":
    main()
