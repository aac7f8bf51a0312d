"""The figures of docs/packing.md: steps, compile times and host data, packed and not.

    python bench/packed_figures.py [--json build/packed.json] [--seconds 6] [--quick]

Takes about six minutes, on a machine that does nothing else. Sides take turns; what counts is
processor time of all threads, and of the ratios of neighbouring rounds the median. A step is
measured with each call waited for, and with only the last one of a round waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import jaxmarshal
from jaxmarshal.packing._host import Forms

FLOAT = jnp.float32
#: What a state is called, and (dtype, shape) of each leaf.
STATES: dict[str, list[tuple[Any, tuple[int, ...]]]] = {
    "1 × f32[8]": [(FLOAT, (8,))],
    "2 × f32[8]": [(FLOAT, (8,))] * 2,
    "4 × f32[8]": [(FLOAT, (8,))] * 4,
    "4 × f32[64,64]": [(FLOAT, (64, 64))] * 4,
    "7 of several dtypes": [(FLOAT, (8,))] * 3 + [(jnp.int32, (8,))] * 2
    + [(jnp.bfloat16, (8,)), (FLOAT, (64, 64))],
    "100 × f32[8]": [(FLOAT, (8,))] * 100,
    "300 × f32[16,16]": [(FLOAT, (16, 16))] * 300,
    "1000 × f32[8]": [(FLOAT, (8,))] * 1000,
    "50 × f32[1024]": [(FLOAT, (1024,))] * 50,
    "200 × f32[64,64]": [(FLOAT, (64, 64))] * 200,
}  # fmt: skip
ROUND = 0.004    # seconds of a side in one round, about
Round = Callable[[], float]


def ratios(sides: list[Round], seconds: float) -> list[float]:
    """Time of the first side over that of each other one: medians over neighbouring rounds."""
    found: list[list[float]] = [[] for _ in sides]
    order = list(range(len(sides)))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[0]) < 10:
        for i in order:
            found[i].append(sides[i]())
        order.reverse()
    return [median(a / b for a, b in zip(found[0], side, strict=True)) for side in found[1:]]


def rounds_of(call: Callable[[], Any], waiting: bool) -> Round:
    """A round of a call whose results can be waited for; a few calls come before."""
    for _ in range(10):
        jax.block_until_ready(call())
    started = time.perf_counter()
    jax.block_until_ready(call())
    number = max(3, int(ROUND / max(time.perf_counter() - started, 1e-6)))

    def one() -> float:
        started = time.process_time()
        for _ in range(number):
            result = call()
            if waiting:
                jax.block_until_ready(result)
        jax.block_until_ready(result)
        return (time.process_time() - started) / number

    return one


# --- Steps ----------------------------------------------------------------------------------------


def half_way(state: list[Any]) -> tuple[list[Any], Any]:
    state = [(x * 0.5 + 0.5).astype(x.dtype) for x in state]
    return state, state[0]


def fed_back(function: Callable[..., Any], kinds: list[Any]) -> Callable[[], Any]:
    held: list[Any] = [[jnp.ones(shape, dtype) for dtype, shape in kinds]]

    def call() -> Any:
        held[0], out = function(held[0])
        return out

    return call


def steps(seconds: float, names: list[str]) -> Iterator[dict[str, Any]]:
    """Each state, donated and not: × faster, each step waited for and the last one only."""
    for name in names:
        for donate in (False, True):
            made: tuple[Any, ...] = (
                jax.jit(half_way, donate_argnums=0 if donate else ()),
                jaxmarshal.carry(half_way, donate=donate),
            )
            calls = [fed_back(function, STATES[name]) for function in made]
            each, end = (
                ratios([rounds_of(call, waiting) for call in calls], seconds)[0]
                for waiting in (True, False)
            )
            yield {"state": name, "donated": donate, "each": each, "end": end}


# --- Compile time ---------------------------------------------------------------------------------


def elementwise(state: list[Any]) -> list[Any]:
    return [x * 0.5 + 0.5 for x in state]


def adam(state: Any) -> Any:
    params, first, second = state
    first = [0.9 * m + 0.01 * p for m, p in zip(first, params, strict=True)]
    second = [0.99 * v + 0.0001 * p * p for v, p in zip(second, params, strict=True)]
    params = [
        p - 0.01 * m / (jnp.sqrt(v) + 1e-8)
        for p, m, v in zip(params, first, second, strict=True)
    ]
    return params, first, second


def chain(state: Any) -> Any:
    def loss(state: Any) -> Any:
        x = jnp.ones(8)
        for weight, bias in state:
            x = jnp.tanh(x @ weight + bias)
        return x.sum()

    return jax.tree.map(lambda p, g: p - 0.01 * g, state, jax.grad(loss)(state))


def _ones(*shape: int) -> Any:
    return jnp.ones(shape, FLOAT)


PROGRAMS: dict[str, tuple[Callable[[Any], Any], Callable[[int], Any], tuple[int, ...]]] = {
    "elementwise": (elementwise, lambda n: [_ones(8) for _ in range(n)], (99, 300, 999)),
    "Adam by hand": (
        adam, lambda n: tuple([_ones(8) for _ in range(n // 3)] for _ in range(3)), (99, 300, 999)
    ),
    "gradients of small layers": (
        chain, lambda n: [(_ones(8, 8), _ones(8)) for _ in range(n // 2)], (100, 300)
    ),
}  # fmt: skip


def compiling(jit: Callable[..., Any], step: Callable[[Any], Any], state: Any) -> float:
    """Processor seconds to trace, lower and compile a step that JAX has not seen."""
    jax.clear_caches()
    function = jit(lambda state: step(state))
    started = time.process_time()
    function.lower(state).compile()
    return time.process_time() - started


def compile_times(times: int, most: int) -> Iterator[dict[str, Any]]:
    """Best of some times to compile a carry, × that of the plain step."""
    for name, (step, make, counts) in PROGRAMS.items():
        for count in counts:
            if count > most:
                continue
            state = make(count)
            sides = ((jax.jit, state), (jaxmarshal.carry, jaxmarshal.pack(state)))
            plain, packed = (
                min(compiling(jit, step, given) for _ in range(times)) for jit, given in sides
            )
            yield {
                "step": name, "leaves": count, "seconds": plain, "packed": packed,
                "ratio": packed / plain,
            }  # fmt: skip


# --- Host data ------------------------------------------------------------------------------------


def host_data(seconds: float) -> Iterator[dict[str, Any]]:
    """A batch of 9 numpy arrays: the put alone, and a whole call."""
    batch = {f"k{i}": np.arange(8, dtype=np.float32) + i for i in range(9)}
    forms = Forms()
    puts: tuple[Callable[[], Any], ...] = (
        lambda: jaxmarshal.device_put(forms.gather(batch)[1]),
        lambda: jax.device_put(batch),
        lambda: jaxmarshal.device_put(batch),
    )
    over_jax, over_ours = ratios([rounds_of(put, True) for put in puts], seconds)
    yield {"what": "put, over jax.device_put", "ratio": 1 / over_jax}
    yield {"what": "put, over jaxmarshal.device_put", "ratio": 1 / over_ours}

    def total(batch: Any) -> Any:
        return {name: x * 2 for name, x in batch.items()}

    plain, packed = jax.jit(total), jaxmarshal.jit(total, pack_host=True)
    calls = (lambda: plain(batch), lambda: packed(batch))
    (ratio,) = ratios([rounds_of(call, True) for call in calls], seconds)
    yield {"what": "a whole call", "ratio": ratio}


def _backend() -> str:
    """The backend, and whether the words of arrays are left unread."""
    backend: str = jax.config.jax_platforms or jax.default_backend()
    off = os.environ.get("JAXMARSHAL_OBJECT_LAYOUT", "").lower() == "off"
    return f"{backend}, layout off" if off else backend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each comparison of steps")
    parser.add_argument("--quick", action="store_true", help="few rows, a second each")
    options = parser.parse_args()
    seconds = 0.5 if options.quick else options.seconds
    names = ["2 × f32[8]", "100 × f32[8]"] if options.quick else list(STATES)
    found: dict[str, Any] = {
        "jax": jax.__version__, "python": platform.python_version(),
        "backend": _backend(),
        "steps": [], "compile": [], "host": [],
    }  # fmt: skip
    print(f"JAX {jax.__version__}, Python {platform.python_version()}, {found['backend']}\n")
    print("| state | each step waited for | waiting at the end |\n| --- | --- | --- |", flush=True)
    for row in steps(seconds, names):
        found["steps"].append(row)
        text = f"{row['state']}{', donated' if row['donated'] else ''}"
        print(f"| {text} | {row['each']:.2f} × | {row['end']:.2f} × |", flush=True)
    print("\n| step | leaves | s | packed, s | × |\n| --- | --- | --- | --- | --- |", flush=True)
    for row in compile_times(1 if options.quick else 3, 100 if options.quick else 1000):
        found["compile"].append(row)
        print(
            f"| {row['step']} | {row['leaves']} | {row['seconds']:.2f} | {row['packed']:.2f} | "
            f"{row['ratio']:.2f} |", flush=True,
        )  # fmt: skip
    print("\n| 9 numpy arrays in one buffer | |\n| --- | --- |", flush=True)
    for row in host_data(seconds):
        found["host"].append(row)
        print(f"| {row['what']} | {row['ratio']:.2f} × |", flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
