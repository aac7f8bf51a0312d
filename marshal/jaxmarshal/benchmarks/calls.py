"""Cases that run compiled code: executables, ahead-of-time calls, and jitted functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxmarshal
from jaxmarshal._core.entries import executables
from jaxmarshal._jax import private
from jaxmarshal.benchmarks import inputs
from jaxmarshal.benchmarks.case import Call, Case, Sides


def _first_plus_one(tree: Any) -> list[Any]:
    return [jax.tree.leaves(tree)[0] + 1]


def _arguments(kind: str, tree: str, count: int, spread: bool) -> Any:
    sharding = inputs.over_all_devices() if spread else None
    return inputs.tree_of(tree, inputs.leaves(kind, count, sharding))


def _floor(compiled: Any, argument: Any) -> Call:
    """Run the executable with arrays at hand; host leaves are placed by one prepared call each."""
    loaded = compiled._executable.unsafe_call
    execute, handlers = loaded.xla_executable.execute_sharded, loaded.out_handler.handlers
    leaves = jax.tree.leaves(argument)
    if all(isinstance(x, jax.Array) for x in leaves):
        return lambda: execute(leaves).consume_with_handlers(handlers)
    put, devices = private.batched_device_put, jax.devices()[:1]
    places = []
    for x in leaves:
        if isinstance(x, jax.Array):
            places.append(lambda x=x: x)
        else:
            done = private.device_put(x)
            places.append(
                partial(put, done.aval, done.sharding, [np.asarray(x, done.dtype)], devices, True)
            )
    return lambda: execute([place() for place in places]).consume_with_handlers(handlers)


def _ahead(kind: str, tree: str, count: int, spread: bool = False) -> Sides:
    argument = _arguments(kind, tree, count, spread)
    compiled = jax.jit(_first_plus_one, keep_unused=True).lower(argument).compile()
    return Sides(
        partial(private.compiled_call, compiled, argument),
        partial(executables.compiled_call, compiled, argument),
        # Where host data prevail, jaxlib's C++ call itself is the cheapest.
        _floor(compiled, argument) if kind.startswith("arrays") else None,
    )


def _blocking(build: Callable[..., Sides], count: int) -> Sides:
    return build("arrays", "list", count).blocking()


def _refused_ahead() -> Sides:
    x = jax.device_put(np.arange(8, dtype=np.float32))

    def function(x: Any) -> Any:
        jax.debug.callback(lambda: None)
        return x + 1

    compiled = jax.jit(function).lower(x).compile()
    return Sides(
        partial(private.compiled_call, compiled, x),
        partial(executables.compiled_call, compiled, x),
    )


def _flat(which: str, count: int) -> Sides:
    argument = inputs.leaves("arrays", count)
    compiled = jax.jit(_first_plus_one, keep_unused=True).lower(argument).compile()
    owner = compiled._executable
    reference, ours = private.mesh_executable_call, executables.mesh_executable_call
    if which == "unsafe_call":
        owner = owner.unsafe_call
        reference, ours = private.execute_replicated_call, executables.execute_replicated_call
    return Sides(
        partial(reference, owner, *argument),
        partial(ours, owner, *argument),
        _floor(compiled, argument),
    )


def _results() -> Sides:
    """Two results made of their buffers."""
    xs = inputs.leaves("arrays", 2)
    owner = jax.jit(lambda x, y: (x, y)).lower(*xs).compile()._executable.unsafe_call.out_handler
    buffers = [[x] for x in xs]
    return Sides(
        partial(private.results_handler_call, owner, buffers),
        partial(executables.results_handler_call, owner, buffers),
    )


def execute_cases() -> Iterator[Case]:
    """The two flat ways into an executable, and the way of its results."""
    yield Case("results of 2 buffers", "results_handler_call", _results)
    for which, entry, speedup in (
        ("unsafe_call", "execute_replicated_call", 2.5),
        ("MeshExecutable.call", "mesh_executable_call", 3.2),
    ):
        for count in (1, 4, 10, 100, 1000):
            yield Case(
                f"{which}, {count} arrays", entry, partial(_flat, which, count), leaves=count,
                series=which, least_speedup=speedup if count == 1 else None,
                quick=count in (1, 100),
            )  # fmt: skip


def ahead_of_time_cases() -> Iterator[Case]:
    """Functions compiled ahead of time, over jaxlib's C++."""
    entry = "compiled_call"
    bars: dict[int, tuple[float | None, float | None]] = {
        1: (1.05, 1.2), 4: (None, None), 10: (None, None), 100: (1.75, 1.25), 1000: (1.95, 1.2),
    }  # fmt: skip
    for count, (speedup, over_floor) in bars.items():
        yield Case(
            f"list of {count} arrays", entry, partial(_ahead, "arrays", "list", count),
            leaves=count, series="list of arrays", least_speedup=speedup,
            most_over_floor=over_floor, quick=True,
        )  # fmt: skip
    # Host data among few arrays is left to jaxlib's C++ call: nothing is gained or lost.
    for kind in ("numpy", "scalars", "mixed"):
        for count in (4, 10, 100):
            yield Case(
                f"list of {count} {kind}, left to C++", entry,
                partial(_ahead, kind, "list", count), leaves=count, series=f"list of {kind}",
                least_speedup=1 / 1.03, hits=False,
            )  # fmt: skip
    yield Case(
        "200 arrays and a numpy", entry, partial(_ahead, "arrays and a numpy", "list", 201),
        leaves=201,
    )  # fmt: skip
    for tree in ("dict", "model", "custom"):
        yield Case(
            f"{tree} of 200 arrays", entry, partial(_ahead, "arrays", tree, 200), leaves=200,
            quick=tree == "model",
        )  # fmt: skip
    for count in (1, 10, 100):
        yield Case(
            f"list of {count} arrays on 8 devices", entry,
            partial(_ahead, "arrays", "list", count, True), leaves=count, devices=8,
            series="list of arrays on 8 devices", least_speedup=1.0,
        )  # fmt: skip
    for count in (1, 100):
        yield Case(
            f"list of {count} arrays, blocking", entry,
            partial(_blocking, _ahead, count), leaves=count,
        )  # fmt: skip
    yield Case("refused (callback)", entry, _refused_ahead, least_speedup=1 / 1.03, hits=False)


def _both(
    function: Callable[..., Any], args: tuple[Any, ...], with_floor: bool = True
) -> Sides:
    """A function jitted by JAX and by jaxmarshal; one of its own, with plans of its own."""
    function = partial(function)
    plain = jax.jit(function, keep_unused=True)
    ours = jaxmarshal.jit(function, keep_unused=True)
    floor = _floor(plain.lower(*args).compile(), args) if with_floor else None
    return Sides(partial(plain, *args), partial(ours, *args), floor)


def _jit(kind: str, tree: str, count: int, spread: bool = False) -> Sides:
    # Where host data prevail, jaxlib's C++ call itself is the cheapest.
    argument = _arguments(kind, tree, count, spread)
    return _both(_first_plus_one, (argument,), kind.startswith("arrays"))


def _shapes_in_turns(count: int) -> Sides:
    """As many signatures, one after the other."""
    lists = [[jax.device_put(np.zeros(n, np.float32))] for n in range(1, count + 1)]

    def first(xs: Any) -> Any:    # the same of each
        return xs[0][0]

    def loop(function: Callable[[Any], Any]) -> Call:
        for xs in lists * 2:
            function(xs)
        turns = itertools.cycle(lists)
        return lambda: function(next(turns))

    return Sides(loop(jax.jit(first)), loop(jaxmarshal.jit(partial(first))))


def _warm_before_install() -> Sides:
    """A function that JAX alone has jitted and called, and that `install()` finds."""
    argument = inputs.leaves("arrays", 1)
    function = jax.jit(partial(_first_plus_one), keep_unused=True)
    for _ in range(3):
        function(argument)
    call = partial(function, argument)
    return Sides(call, call, installed=True)


def _positional(count: int) -> Sides:
    return _both(lambda *xs: xs[0] + 1, tuple(inputs.leaves("arrays", count)))


def _key_and_array() -> Sides:
    def function(key: Any, x: Any) -> Any:
        return x + jax.random.key_data(key)[0]

    args = (jax.random.key(0), *inputs.leaves("arrays", 1))
    both = _both(function, args, with_floor=False)
    loaded = jax.jit(function).lower(*args).compile()._executable.unsafe_call
    execute, handlers = loaded.xla_executable.execute_sharded, loaded.out_handler.handlers
    arrays = [args[0]._base_array, args[1]]
    return Sides(
        both.reference, both.jaxmarshal, lambda: execute(arrays).consume_with_handlers(handlers)
    )


def _fed_back(count: int) -> Sides:
    """A step whose results are the arguments of the next."""

    def step(xs: list[Any]) -> list[Any]:
        return [x * 1 for x in xs]

    def loop(function: Callable[[Any], Any]) -> Call:
        state = [inputs.leaves("arrays", count)]

        def call() -> Any:
            state[0] = function(state[0])
            return state[0]

        return call

    compiled = jax.jit(step).lower(inputs.leaves("arrays", count)).compile()._executable
    execute = compiled.unsafe_call.xla_executable.execute_sharded
    handlers = compiled.unsafe_call.out_handler.handlers
    return Sides(
        loop(jax.jit(step)),
        loop(jaxmarshal.jit(step)),
        loop(lambda xs: execute(xs).consume_with_handlers(handlers)),
    )


def _array_and_scalars(values: tuple[float, ...]) -> Sides:
    """One array and one of the values, in turns."""
    x = jax.device_put(np.arange(8, dtype=np.float32))

    def function(x: Any, scale: Any) -> Any:
        return x * scale

    plain, ours = jax.jit(function), jaxmarshal.jit(partial(function))

    def calls(call: Callable[..., Any]) -> Callable[[], Any]:
        turns = itertools.cycle(values)
        return lambda: call(x, next(turns))

    return Sides(calls(plain), calls(ours))


def jit_cases() -> Iterator[Case]:
    """Jitted functions, over jaxlib's C++."""
    bars: dict[int, tuple[float | None, float | None]] = {
        1: (1.02, 1.2), 10: (1.3, 1.25), 100: (1.8, 1.2), 1000: (2.0, 1.15),
    }  # fmt: skip
    for count in (1, 4, 10, 100, 1000, 4000):
        speedup, over_floor = bars.get(count, (None, None))
        yield Case(
            f"list of {count} arrays", "jit", partial(_jit, "arrays", "list", count),
            leaves=count, series="list of arrays", least_speedup=speedup,
            most_over_floor=over_floor, quick=count in (1, 100),
        )  # fmt: skip
    yield Case(
        "100 arrays by position", "jit", partial(_positional, 100), leaves=100,
        least_speedup=1.8, most_over_floor=1.2,
    )  # fmt: skip
    for name, values in (
        ("an array and a scalar", (0.5,)),
        ("an array and three scalars in turns", (0.5, 1.5, 2.5)),
        ("an array and a scalar that changes", tuple(i + 0.5 for i in range(64))),
    ):
        yield Case(
            name, "jit", partial(_array_and_scalars, values), leaves=2, least_speedup=1.0
        )
    for count in (4, 100):
        yield Case(
            f"list of {count} scalars", "jit", partial(_jit, "scalars", "list", count),
            leaves=count, series="list of scalars", least_speedup=1.0,
        )  # fmt: skip
    for kind in ("numpy", "mixed"):
        for count in (4, 100):
            yield Case(
                f"list of {count} {kind}", "jit", partial(_jit, kind, "list", count),
                leaves=count, series=f"list of {kind}", least_speedup=1.1,
            )  # fmt: skip
    for count in (1, 10):
        yield Case(
            f"list of {count} arrays and a numpy", "jit",
            partial(_jit, "arrays and a numpy", "list", count + 1), leaves=count + 1,
            least_speedup=1.1,
        )  # fmt: skip
    yield Case(
        "an array and a long numpy, left to C++", "jit", _array_and_long_numpy, leaves=2,
        least_speedup=1 / 1.02, hits=False,
    )  # fmt: skip
    yield Case(
        "list of 1 arrays, warm before install", "jit", _warm_before_install, least_speedup=1.02
    )  # fmt: skip
    for count, shapes in ((1, "1 shape"), (100, "100 shapes")):
        yield Case(
            f"list of 1 arrays, {shapes} in turns", "jit", partial(_shapes_in_turns, count),
            least_speedup=1.0,
        )  # fmt: skip
    for tree in ("dict", "model", "custom"):
        bar = (1.9, 1.35) if tree == "model" else (None, None)
        yield Case(
            f"{tree} of 200 arrays", "jit", partial(_jit, "arrays", tree, 200), leaves=200,
            least_speedup=bar[0], most_over_floor=bar[1], quick=tree == "model",
        )  # fmt: skip
    yield Case(
        "model of 200 arrays and a numpy", "jit", _model_and_numpy, leaves=201, least_speedup=1.6
    )  # fmt: skip
    yield Case(
        "100 arrays in and out, fed back", "jit", partial(_fed_back, 100), leaves=100,
        least_speedup=1.1,
    )  # fmt: skip
    yield Case("a typed key and an array", "jit", _key_and_array, leaves=2, least_speedup=1.0)
    for count in (1, 100):
        yield Case(
            f"list of {count} arrays on 8 devices", "jit",
            partial(_jit, "arrays", "list", count, True), leaves=count, devices=8,
        )  # fmt: skip
        yield Case(
            f"list of {count} arrays, blocking", "jit",
            partial(_blocking, _jit, count), leaves=count,
        )  # fmt: skip


def _array_and_long_numpy() -> Sides:
    return _both(lambda x, y: x + y[0], (jnp.ones(8), np.ones(16_384, np.float32)))


def _model_and_numpy() -> Sides:
    def function(model: Any, x: Any) -> Any:
        return jax.tree.leaves(model)[0] + x

    return _both(
        function, (_arguments("arrays", "model", 200, False), inputs.leaves("numpy", 1)[0])
    )
