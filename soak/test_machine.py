"""A random walk over the public API, taken by plain JAX and by jaxmarshal side by side.

    python -m pytest soak/test_machine.py                  a short walk
    JAXMARSHAL_SOAK_STEPS=100000 python -m pytest …        a long one

Each side has arrays of its own, made by the same steps; they live on, are fed back, moved, donated
and deleted. After each step everything observable is compared, but for warnings: JAX gives some of
them only when it compiles, and each side compiles for itself.
"""

from __future__ import annotations

import contextlib
import gc
import os
from functools import partial
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from jax import lax
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

import jaxmarshal
from jaxmarshal._jax import patching
from jaxmarshal.selfcheck.observe import outcome
from jaxmarshal.selfcheck.runner import first_difference

STEPS = int(os.environ.get("JAXMARSHAL_SOAK_STEPS", "2000"))
#: Steps of one walk, which then begins anew with nothing.
LENGTH = 50
#: Arrays that a side keeps; older ones go.
KEPT = 12

SHAPES = [(), (8,), (2, 8)]
DTYPES = ["float32", "float32", "int32", "complex64"]
MESH = jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))
ALL = len(jax.devices())


def targets() -> dict[str, Any]:
    """Where an array may go."""
    return {
        "anywhere": None,
        "first": jax.devices()[0],
        "last": SingleDeviceSharding(jax.devices()[-1]),
        "replicated": NamedSharding(MESH, PartitionSpec()),
        "spread": NamedSharding(MESH, PartitionSpec("x")),
        "columns": Format(Layout((1, 0)), SingleDeviceSharding(jax.devices()[0])),
    }


TARGETS = targets()


#: What `closing` of each side closes over, and the function itself.
HELD: list[list[float]] = []
CLOSING: list[Any] = []
#: Ways in which it is jitted, of which some share what jaxlib keeps.
RELATIVES: dict[str, dict[str, Any]] = {
    "closing": {}, "the same again": {}, "with a static argument": {"static_argnums": 1},
    "inlined": {"inline": True},
}


def functions(jit: Any) -> dict[str, Any]:
    """Functions of one list of arrays, jitted anew."""
    held = [1.0]

    def closing(xs: Any, n: Any = 0) -> Any:
        return [x * held[0] for x in xs[:2]]

    HELD.append(held)
    CLOSING.append(closing)

    def statics(xs: Any, n: Any) -> Any:
        return [x * n for x in xs[:2]]

    return {
        "each": jit(lambda xs: [x + 1 for x in xs]),
        "first": jit(lambda xs: xs[0] * 2),
        "tree": jit(lambda xs: {"b": xs[-1], "a": (xs[0], None), "n": len(xs)}),
        "pruned": jit(lambda xs: jnp.zeros(3)),
        "donating": jit(lambda xs: [x + x for x in xs], donate_argnums=0),
        "kept": jit(lambda xs: [x + x for x in xs], keep_unused=True),
        "static": partial(jit(statics, static_argnums=1), n=2),
        "placed": jit(lambda xs: xs[0] - 1, out_shardings=SingleDeviceSharding(jax.devices()[1])),
        "gradient": jit(jax.grad(lambda xs: sum(jnp.sin(x.astype("float32")).sum() for x in xs))),
        "key": jit(lambda xs: jax.random.split(jax.random.key(0), 2)),
        **{name: jit(closing, **options) for name, options in RELATIVES.items()},
    }


def eager(name: str, x: Any, y: Any, n: int) -> Any:
    """One operation outside of `jit`."""
    operations = {
        "add": lambda: lax.add(x, y), "neg": lambda: lax.neg(x), "plus": lambda: x + y,
        "scaled": lambda: x * n, "asarray": lambda: jnp.asarray(x),
        "array": lambda: jnp.array(x), "from host": lambda: jnp.asarray(np.asarray(x)),
        "index": lambda: x[n], "slice": lambda: x[n:], "sum": lambda: jnp.sum(x),
        "zeros": lambda: jnp.zeros((n + 1, 2)), "full": lambda: jnp.full(3, n, x.dtype),
        "reshape": lambda: x.reshape(-1), "split": lambda: jax.random.split(jax.random.key(n)),
        "stack": lambda: jnp.stack([x, y]), "where": lambda: jnp.where(x == y, x, y),
        "cast": lambda: x.astype("float32"), "set": lambda: x.at[..., 0].set(n),
    }  # fmt: skip
    return operations[name]()


EAGER = ["add", "neg", "plus", "scaled", "asarray", "array", "from host", "index", "slice", "sum",
         "zeros", "full", "reshape", "split", "stack", "where", "cast", "set"]  # fmt: skip
CONTEXTS: dict[str, Any] = {
    "plain": contextlib.nullcontext,
    "x64": partial(jax.enable_x64, True),
    "device": lambda: jax.default_device(jax.devices()[2]),
    "guard": partial(jax.transfer_guard, "disallow"),
    "precision": partial(jax.default_matmul_precision, "float32"),
    "mesh": lambda: jax.set_mesh(MESH),
    "no jit": jax.disable_jit,
    "nans": partial(jax.debug_nans, True),
}
NAMES = [entry.name for entry in patching.ENTRY_POINTS if entry.active]

# What JAX made at import is left out of the collections.
jax.local_devices()
gc.collect()
gc.freeze()

#: One side's functions each, for all walks, so that few things are compiled.
jaxmarshal.uninstall()
PLAIN = functions(jax.jit)
jaxmarshal.install()
FAST = functions(jax.jit)
jaxmarshal.uninstall()

#: What each side compiled ahead of time.
COMPILED: list[dict[Any, Any]] = [{}, {}]

contexts = st.sampled_from(["plain"] * 12 + sorted(CONTEXTS))
picks = st.lists(st.integers(0, KEPT - 1), min_size=1, max_size=3)


class Machine(RuleBasedStateMachine):
    """The two sides, and which entry points are installed for the second."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: list[Any] = []
        self.fast: list[Any] = []
        self.names: list[str] = NAMES

    def both(self, step: Any, context: str = "plain") -> None:
        """Take a step on each side: `step(functions, arrays)`, whose results are kept."""
        results = []
        for functions_, arrays, names in ((PLAIN, self.plain, []), (FAST, self.fast, self.names)):
            kept: list[Any] = []

            def call(functions_: Any = functions_, arrays: Any = arrays, kept: Any = kept) -> Any:
                found = step(functions_, arrays)
                kept[:] = [x for x in jax.tree.leaves(found) if isinstance(x, jax.Array)]
                return found

            if names:
                jaxmarshal.install(names)
            try:
                seen = outcome(call, context=CONTEXTS[context])
            finally:
                jaxmarshal.uninstall()
            states = [
                (x.is_deleted(), any(x is y for y in arrays)) for x in [*arrays, *kept]
            ]
            results.append((seen, states))
            arrays += [x for x in kept if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)]
            del arrays[:-KEPT]
        assert results[0] == results[1], first_difference(*results)

    @initialize()
    def begin(self) -> None:
        """Something to start from."""
        self.make((4,), "float32", "anywhere", "plain")

    @rule(
        shape=st.sampled_from(SHAPES), dtype=st.sampled_from(DTYPES),
        where=st.sampled_from(sorted(TARGETS)), context=contexts,
    )
    def make(self, shape: Any, dtype: Any, where: str, context: str) -> None:
        """A numpy array is put somewhere."""
        host = (np.arange(np.prod(shape)).reshape(shape) - 1).astype(dtype)
        self.both(lambda f, arrays: jax.device_put(host.copy(), TARGETS[where]), context)

    @rule(pick=picks, where=st.sampled_from(sorted(TARGETS)), context=contexts)
    def put(self, pick: list[int], where: str, context: str) -> None:
        """Arrays are put somewhere, several at once."""
        def step(functions_: Any, arrays: Any) -> Any:
            return jax.device_put(choose(arrays, pick), TARGETS[where])

        self.both(step, context)

    @rule(name=st.sampled_from(sorted(PLAIN)), pick=picks, times=st.integers(1, 3),
          context=contexts)  # fmt: skip
    def call(self, name: str, pick: list[int], times: int, context: str) -> None:
        """A jitted function is called, several times with the same arrays."""
        def step(functions_: Any, arrays: Any) -> Any:
            chosen = choose(arrays, pick)
            if name == "donating":
                # On one device: JAX 0.10.2 itself crashes now and then where an array of several
                # devices is donated that was given twice, or in part, before.
                chosen = [jax.device_put(np.array(x), jax.devices()[0]) for x in chosen]
            return chosen, [functions_[name](chosen) for _ in range(times)][-1]

        self.both(step, context)

    @rule(name=st.sampled_from(["each", "first", "tree"]), pick=picks, context=contexts)
    def compiled(self, name: str, pick: list[int], context: str) -> None:
        """The same ahead of time."""
        def step(functions_: Any, arrays: Any) -> Any:
            chosen = choose(arrays, pick)
            made = COMPILED[functions_ is FAST]
            key = (name, context, str([(x.aval, x.sharding, x.committed) for x in chosen]))
            run = made.get(key) or functions_[name].lower(chosen).compile()
            made[key] = run
            return [run(chosen) for _ in range(2)][-1]

        self.both(step, context)

    @rule(
        name=st.sampled_from(["each", "first"]), pick=picks,
        other=st.sampled_from([1.5, 2, True, np.float32(3), np.ones(4), "text", None]),
    )
    def call_mixed(self, name: str, pick: list[int], other: Any) -> None:
        """Host data, and what is none, among the arrays."""
        self.both(lambda f, arrays: f[name]([*choose(arrays, pick), other]))

    @rule(name=st.sampled_from(EAGER), one=st.integers(0, KEPT - 1), two=st.integers(0, KEPT - 1),
          n=st.integers(-2, 3), context=contexts)  # fmt: skip
    def operate(self, name: str, one: int, two: int, n: int, context: str) -> None:
        """An operation outside of `jit`, twice."""
        def step(functions_: Any, arrays: Any) -> Any:
            x, y = choose(arrays, [one, two])
            eager(name, x, y, abs(n) if name in ("zeros", "split") else n)
            return eager(name, x, y, abs(n) if name in ("zeros", "split") else n)

        self.both(step, context)

    @rule(pick=st.integers(0, KEPT - 1))
    def delete(self, pick: int) -> None:
        """An array is deleted, and stays among the others."""
        def step(functions_: Any, arrays: Any) -> Any:
            # One that shares no buffer: JAX 0.10.2 itself crashes where one of several shards of
            # an array was deleted through another.
            doomed = jax.device_put(np.array(choose(arrays, [pick])[0]), jax.devices()[0])
            doomed.delete()
            return doomed

        self.both(step)

    @rule(pick=st.integers(0, KEPT - 1))
    def drop(self, pick: int) -> None:
        """An array is let go; its address may come back."""
        for arrays in (self.plain, self.fast):
            if len(arrays) > 1:
                del arrays[pick % len(arrays)]

    @rule(names=st.sets(st.sampled_from(NAMES), min_size=1))
    def install(self, names: set[str]) -> None:
        """Some entry points are installed from now on."""
        self.names = sorted(names)

    @rule()
    def install_all(self) -> None:
        self.names = NAMES

    @rule(pick=st.integers(0, 200))
    def collect(self, pick: int) -> None:
        """Garbage is collected; now and then JAX forgets what it compiled."""
        gc.collect(2 if pick == 0 else 1)
        if pick == 200:
            jax.clear_caches()
            for made in COMPILED:
                made.clear()

    @rule(name=st.sampled_from(sorted(RELATIVES)), value=st.sampled_from([1.0, 3.0]),
          clear=st.booleans(), listening=st.booleans())  # fmt: skip
    def change(self, name: str, value: float, clear: bool, listening: bool) -> None:
        """What functions close over is another number; the cache of one may be cleared."""
        if listening:
            jaxmarshal.install(self.names)
        for held, functions_ in zip(HELD, (PLAIN, FAST), strict=True):
            held[0] = value
            if clear:
                functions_[name].clear_cache()
        jaxmarshal.uninstall()

    @rule(name=st.sampled_from(sorted(RELATIVES)), listening=st.booleans())
    def jit_again(self, name: str, listening: bool) -> None:
        """One is jitted anew, before or after jaxmarshal is installed; the old one dies."""
        PLAIN[name] = jax.jit(CLOSING[0], **RELATIVES[name])
        if listening:
            jaxmarshal.install(self.names)
        FAST[name] = jax.jit(CLOSING[1], **RELATIVES[name])
        jaxmarshal.uninstall()

    @rule(name=st.sampled_from(["each", "first"]), pick=picks)
    def explain(self, name: str, pick: list[int]) -> None:
        """An explanation changes nothing."""
        jaxmarshal.install(self.names)
        try:
            jaxmarshal.explain(FAST[name], choose(self.fast, pick))
        finally:
            jaxmarshal.uninstall()

    def teardown(self) -> None:
        jaxmarshal.uninstall()


def choose(arrays: list[Any], pick: list[int]) -> list[Any]:
    """Some of the arrays."""
    return [arrays[i % len(arrays)] for i in pick]


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=max(1, STEPS // LENGTH), stateful_step_count=LENGTH, deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=STEPS < 10_000,    # a short walk is the same one every time
)  # fmt: skip
