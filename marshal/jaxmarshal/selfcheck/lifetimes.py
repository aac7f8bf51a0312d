"""Checks of what one call does not show: lifetimes, functions as objects, threads, processes."""

from __future__ import annotations

import gc
import inspect
import os
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxmarshal
from jaxmarshal.selfcheck.calls import compiled
from jaxmarshal.selfcheck.registry import Recorder, check
from jaxmarshal.selfcheck.world import World


@check("trap 2: addresses used again", trap=2)
def addresses(world: World, record: Recorder) -> None:
    """Arrays die and others, often at the same address, are given to the same function."""
    run = compiled(lambda x: x + 1, world.put())
    kinds: list[Any] = [
        lambda: world.put(), lambda: world.put(world.first), lambda: world.put(dtype="int32"),
        lambda: jnp.ones((3,)), lambda: world.put(world.other),
        lambda: world.put(world.spread("x")),
        lambda: jax.device_put(world.matrix(), world.columns()),
    ]  # fmt: skip
    for turn in range(6):
        for number, make in enumerate(kinds):
            record.calls(f"kind {number}, turn {turn}", run, lambda make=make: (make(),))
            record.calls(
                f"device_put, kind {number}, turn {turn}", jax.device_put,
                lambda make=make: (make(), world.first),
            )


@check("trap 11: lifetimes", trap=11)
def lifetimes(world: World, record: Recorder) -> None:
    """Arguments, results and compiled functions die when their last user drops them."""
    def alive(references: list[Any]) -> list[bool]:
        gc.collect()
        return [reference() is not None for reference in references]

    argument = world.put()
    run = compiled(lambda x: x * 5, argument)
    for _ in range(3):
        result = run(argument)
        moved = jax.device_put(argument, world.spread())
    references = [weakref.ref(x) for x in (argument, result, moved, run)]
    record.fact("while used", alive(references))
    del argument, result, moved
    record.fact("arrays dropped", alive(references))
    del run
    record.fact("function dropped", alive(references))

    run = compiled(lambda x: x * 6, world.put())
    function = jax.jit(lambda x: x * 7)
    for clear in (jax.clear_caches, function.clear_cache):
        record.calls("before", run, lambda: (world.put(),))
        record.calls("jit, before", function, lambda: (world.put(),))
        clear()
        record.calls("after", run, lambda: (world.put(),))
        record.calls("jit, after", function, lambda: (world.put(),))
        record.calls("device_put, after", jax.device_put, lambda: (world.matrix(), world.first))


def _facts(function: Any) -> dict[str, Any]:
    """What a function tells about itself."""
    return {
        "name": getattr(function, "__name__", None),
        "module": getattr(function, "__module__", None),
        "doc": function.__doc__,
        "signature": str(inspect.signature(function)),
        "callable": callable(function),
    }


class _Model:
    """A class with a jitted method."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __hash__(self) -> int:
        return hash(self.scale)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Model) and other.scale == self.scale


@check("trap 12: functions as objects", trap=12)
def functions(world: World, record: Recorder) -> None:
    """Names, signatures, attributes, methods and pickling of functions and what they return."""
    described = _facts(jax.device_put)
    del described["module"]    # it is jaxmarshal's, for pickling
    record.fact("device_put", described)

    def double(x: Any, n: int = 2) -> Any:
        """Twice."""
        return x * n

    function = jax.jit(double, static_argnames="n")
    record.fact("jit", _facts(function))
    record.fact("wrapped", function.__wrapped__ is double)
    record.fact("eval_shape", str(function.eval_shape(world.matrix())))
    record.fact("lowered", function.lower(world.matrix()).as_text())
    record.fact("traced", str(function.trace(world.matrix()).jaxpr))
    record.fact("weak reference", weakref.ref(function)() is function)
    record.calls("jit", function, lambda: (world.put(),))
    record.calls("jit, keyword", lambda x: function(x, n=3), lambda: (world.put(),))
    record.fact("sizes", function._cache_size())
    try:
        pickle.dumps(function)
        record.fact("pickling jit", "done")
    except Exception as error:
        record.fact("pickling jit", type(error).__name__)

    _Model.apply = jax.jit(lambda self, x: x * self.scale, static_argnums=0)    # type: ignore
    model = _Model(3.0)
    record.calls("method", lambda x: model.apply(x), lambda: (world.put(),))    # type: ignore

    run = compiled(double, world.put())
    record.fact("compiled", [type(run).__name__, str(run.in_avals), str(run.out_tree), run.in_tree])
    record.fact("input shardings", run.input_shardings)
    record.calls("compiled", run, lambda: (world.put(),))


@check("trap 13: threads", trap=13)
def threads(world: World, record: Recorder) -> None:
    """Eight threads share functions, also while they are called for the first time."""
    run = compiled(lambda x: x * 2, world.put())
    function = jax.jit(lambda x: x + 1)
    wrong: list[str] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        data = world.matrix() + number
        start.wait()
        for turn in range(40):
            target = world.devices[(number + turn) % len(world.devices)]
            placed = jax.device_put({"a": data, "b": number + turn}, target)
            array = jax.device_put(data)
            for name, found, expected in (
                ("device_put", placed["a"], data), ("scalar", placed["b"], number + turn),
                ("compiled", run(array), data * 2), ("jit", function(placed["a"]), data + 1),
            ):  # fmt: skip
                if not np.array_equal(found, expected):
                    wrong.append(f"{name} of thread {number}")
            if placed["a"].devices() != {target}:
                wrong.append(f"device of thread {number}")

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            wrong.append(f"{type(error).__name__}: {error}")

    workers = [threading.Thread(target=guarded, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    record.fact("wrong results", wrong)


#: Prints what a fresh process sees; the first line of the program installs, or not.
FRESH = """
import jax
import numpy as np

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 3)    # an error once there is a backend
jax.config.update("jax_enable_x64", True)
data = np.arange(4.0)


@jax.jit
def traced(x):
    return x + jax.device_put(data)


with jax.transfer_guard_device_to_device("disallow"), jax.default_device(jax.devices()[2]):
    first = traced(1.0)
    print(first, first.dtype, first.devices())
    again = [jax.device_put(first), *[jax.device_put(data) for _ in range(3)]]
    print([(str(x), x.dtype, x.devices(), x.committed) for x in again])
del first, again
import gc
gc.collect()
print(len(jax.live_arrays()), len(jax.devices()))
"""


@check("trap 14: importing and installing", trap=14)
def fresh_process(world: World, record: Recorder) -> None:
    """A new process configures JAX after installing, and makes its first call in odd contexts.

    On the CPU, whatever the devices here are: another process may not be able to use those.
    """
    folder = str(Path(jaxmarshal.__file__).resolve().parents[1])
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAXMARSHAL")}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [folder, environment.get("PYTHONPATH")])
    )
    source = FRESH
    if world.accelerated:
        source = "import jaxmarshal.auto\n" + source
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=300
    )
    record.fact("exit status", done.returncode)
    record.fact("output", done.stdout)
    if done.returncode:
        record.fact("error output", done.stderr[-1000:])


