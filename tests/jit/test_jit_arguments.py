"""Calls and arguments of jitted functions that are not plain ones (trap 5)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import config
from jax.sharding import NamedSharding
from jitted import DATA, P, add_one, on, several, spread, warm
from observe import observe
from support import aligned, column_major, literal
from twins import Twins, jit_counts

from jaxmarshal._core.values import array_words
from jaxmarshal._jax import private

# --- 5: not plain calls --------------------------------------------------------------------------


@pytest.mark.usefixtures("callbacks")
def test_trap_5_effects():
    """Trap 5: functions with effects are the reference's, and each effect happens once."""
    for ordered in (False, True):
        seen = [[], []]

        def make(ordered=ordered, mine=iter(seen)):
            log = next(mine)

            def printing(x):
                jax.debug.callback(lambda v: log.append(float(v)), x.sum(), ordered=ordered)
                return x + 1

            return printing

        twins = Twins(make)
        for i in range(4):
            twins(lambda i=i: (jnp.full(3, float(i)),))
        jax.effects_barrier()
        assert sorted(seen[0]) == sorted(seen[1]) == [0.0, 3.0, 6.0, 9.0]
        assert jit_counts()[0] == 0


@pytest.mark.usefixtures("callbacks")
def test_trap_5_io_callback():
    """Trap 5: I/O callbacks run once a call."""
    calls = [[], []]

    def make(mine=iter(calls)):
        log = next(mine)

        def function(x):
            y = jax.experimental.io_callback(lambda v: log.append(1) or v, x, x)
            return y + 1

        return function

    twins = Twins(make)
    for _ in range(4):
        twins(lambda: (jnp.ones(3),))
    assert len(calls[0]) == len(calls[1]) == 4
    assert jit_counts()[0] == 0


@pytest.mark.usefixtures("callbacks")
def test_trap_5_pure_callbacks_and_errors_while_running():
    """Trap 5: what fails while it runs raises what it raises in jaxlib's C++ dispatch."""

    def make():
        calls = []

        def callback(x):
            calls.append(1)
            if len(calls) % 3 == 0:
                raise ZeroDivisionError("on purpose")
            return np.asarray(x) * 2

        return lambda x: jax.pure_callback(callback, x, x)

    twins = Twins(make)
    outcomes = []
    for _ in range(7):
        found = []
        for function in (twins.plain, twins.fast):
            try:
                found.append(jax.block_until_ready(function(jnp.ones(3))).tolist())
            except Exception as error:
                found.append((type(error), "on purpose" in str(error)))
        assert found[0] == found[1]
        outcomes.append(found[0])
    assert outcomes[2] == outcomes[5] == (ValueError, True)
    hits, reasons = jit_counts()
    assert (hits, reasons) == (4, {"not_recorded": 1})


def test_trap_5_donated_arguments():
    """Trap 5: a donated argument is gone, and used again it is an error."""
    twins = Twins(add_one, donate_argnums=0)
    warm(twins, lambda: (jnp.zeros(4),))
    states = [jnp.zeros(4), jnp.zeros(4)]
    for _ in range(4):
        before = list(states)
        states = [twins.plain(states[0]), twins.fast(states[1])]
        assert [x.is_deleted() for x in before] == [True, True]
    assert states[0].tolist() == states[1].tolist() == [4] * 4
    assert jit_counts() == (4, {})
    gone = [observe(f, x) for f, x in zip((twins.plain, twins.fast), before, strict=True)]
    assert gone[0] == gone[1] and gone[0][0][0] == "raised"
    # Where no word tells it, the plan's error is that of jaxlib's C++, unless that looks before.
    found = array_words.describe()["data"] is not None or private.looks_for_donated
    assert jit_counts() == (0, {"deleted": 1} if found else {})


@pytest.mark.parametrize("donated", [(0,), (1,), (0, 1)])
def test_trap_5_one_array_donated_twice(donated):
    """Trap 5: the same array twice, of which one or both are donated."""
    twins = Twins(lambda: lambda x, y: (x + 1, y * 2), donate_argnums=donated)
    warm(twins, lambda: (jnp.zeros(4), jnp.ones(4)))

    def same():
        return (jnp.zeros(4),) * 2

    for _ in range(2):
        assert twins(same)[0][:2] == ("raised", ValueError)
    twins(lambda: (jnp.zeros(4), jnp.ones(4)))
    _, reasons = jit_counts()
    assert not reasons


@pytest.mark.parametrize("keep_unused", [False, True])
def test_trap_5_donated_by_name_host_and_unused(keep_unused):
    """Trap 5: donation by name, of trees, of data on the host, and of what is not used."""
    twins = Twins(
        lambda: lambda state, x, *, other, unused: ({k: v + x for k, v in state.items()}, other),
        donate_argnums=0, donate_argnames=("other", "unused"), keep_unused=keep_unused,
    )  # fmt: skip
    for _ in range(3):
        twins(
            lambda: ({"a": jnp.ones(3), "b": jnp.zeros(3)}, jnp.float32(2)),
            lambda: {"other": jnp.ones(5), "unused": jnp.ones(2)},
        )
    assert jit_counts() == (2, {"not_recorded": 1})
    some = several()
    host = Twins(lambda: lambda x, xs: (x + 1, xs), donate_argnums=0)
    for offset in (0, 0, 0, 8, 8):
        host(lambda offset=offset: (aligned(16, offset=offset), some))
    assert jit_counts() == (4, {"not_recorded": 1})


def test_trap_5_deleted_argument():
    """Trap 5: a deleted argument is the reference's error, kept or pruned."""
    twins = Twins(lambda: lambda x, unused: x + 1)
    args = (jnp.zeros(4), jnp.ones(4))
    warm(twins, lambda: args)
    args[1].delete()
    twins(lambda: args)
    args[0].delete()
    assert twins(lambda: args)[0][0] == "raised"
    assert jit_counts() == (0, {"deleted": 2})


def test_trap_5_pruned_arguments():
    """Trap 5: what is not used is pruned, wherever it is and lies, and still part of the call."""
    twins = Twins(lambda: lambda a, x, b, y, c: {"x": x + y})
    x = jnp.arange(3.0)
    warm(twins, lambda: (x, x + 1, x + 2, x + 3, x + 4))
    for unused in (jnp.ones(7), jnp.ones(3, jnp.int32), column_major(DATA), None, on(0, DATA)):
        for _ in range(3):
            twins(lambda unused=unused: (unused, x + 1, unused, x + 3, x))
    # A committed array of this shape came before, and where it lies does not matter.
    assert jit_counts()[0] == 11
    elsewhere = on(3, np.ones(3, np.float32))
    for _ in range(2):
        twins(lambda: (elsewhere, x, x, x, x))
    keep = Twins(lambda: lambda a, x: x + 1, keep_unused=True)
    warm(keep, lambda: (x, x + 1))
    assert keep(lambda: (x + 1, x * 3))[0][0] == "returned"


@pytest.mark.slow
def test_trap_5_constants_that_are_arguments():
    """Trap 5: arrays that the function closes over are passed along, to where the call runs."""
    data = np.arange(4096, dtype=np.float32)
    for simplified in (False, True):
        with config.use_simplified_jaxpr_constants(simplified):
            for constant in (
                jax.device_put(data), on(0, data), on(3, data), data, spread(data),
                jnp.float32(2), 3.0, np.float32(4),
            ):  # fmt: skip
                twins = Twins(lambda constant=constant: lambda x, unused: x * 2 + constant)
                for place in (None, 0, 3, 3, None, 0):
                    x = jax.device_put(data + 1) if place is None else on(place, data + 1)
                    twins(lambda x=x: (x, x))
                for spec in (P(), P("x"), P("x"), P()):
                    twins(lambda spec=spec: (spread(data, spec), spread(data, spec)))


def test_trap_5_constants_hit():
    """Trap 5: calls with constants go through plans, and these keep only what JAX keeps."""
    with config.use_simplified_jaxpr_constants(True):
        constant = jax.device_put(np.arange(4096, dtype=np.float32))
        twins = Twins(lambda: lambda x: x + constant)
        for i in range(4):
            twins(lambda i=i: (jnp.full(4096, float(i)),))
        assert jit_counts() == (3, {"not_recorded": 1})


def test_trap_5_mutable_refs():
    """Trap 5: references that are updated, closed over or passed, stay with the reference."""
    refs = [jax.new_ref(jnp.zeros(3)) for _ in range(2)]

    def make(mine=iter(refs)):
        ref = next(mine)

        def step(x):
            ref[...] += x
            return ref[...] * 2

        return step

    twins = Twins(make)
    for _ in range(3):
        twins(lambda: (jnp.ones(3),))
    assert [ref[...].tolist() for ref in refs] == [[3] * 3] * 2

    def passed():
        def step(ref, x):
            ref[...] = ref[...] + x
            return x

        return step

    twins = Twins(passed)
    for function in (twins.plain, twins.fast):
        ref = jax.new_ref(jnp.zeros(3))
        for _ in range(3):
            function(ref, jnp.ones(3))
        assert ref[...].tolist() == [3] * 3
    assert jit_counts()[0] == 0


def test_trap_5_typed_keys():
    """Trap 5: typed keys as arguments and results, alone, batched, among arrays and pruned."""

    def make():
        return lambda keys, x, unused: (keys[::-1], jax.vmap(jax.random.normal)(keys) + x)

    keys = jax.random.split(jax.random.key(0), 3)
    twins = Twins(make)
    x = jnp.arange(3.0)
    warm(twins, lambda: (keys, x, jax.random.key(1)))
    for seed in range(3):
        twins(lambda seed=seed: (jax.random.split(jax.random.key(seed), 3), x, keys[0]))
    assert jit_counts() == (3, {})
    twins(lambda: (keys, x, jax.random.key(1, impl="rbg")))
    assert jit_counts() == (0, {"aval": 1})


def test_trap_5_other_keys():
    """Trap 5: keys of another implementation, committed, moved, deleted or checked for reuse."""
    key = jax.random.key(0)
    deleted = jax.random.key(7)
    deleted._base_array.delete()
    for first in (key, jax.random.key(0, impl="rbg")):
        twins = Twins(lambda: lambda k: jax.random.bits(k))
        warm(twins, lambda first=first: (first,))
        for other in (    # the first has the very words that were recorded
            first._base_array, jax.random.key(0, impl="rbg"), jax.random.key(0, impl="unsafe_rbg"),
            jax.device_put(key, jax.devices()[0]), jax.device_put(key, jax.devices()[2]),
            jax.random.split(key), jax.random.key_data(key), first._base_array, deleted, key,
        ):  # fmt: skip
            twins(lambda other=other: (other,))
    jit_counts()
    twins = Twins(lambda: lambda k: (jax.random.bits(k), k))
    warm(twins, lambda: (key,))
    for _ in range(3):
        twins(lambda: (jax.random.key(0),), context=lambda: jax.debug_key_reuse(True))
    assert jit_counts()[0] == 0


def test_trap_5_keys_on_several_devices():
    """Trap 5: sharded keys; their base arrays have a dimension more than they."""
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))
    for spec in (P("x"), P()):
        place = NamedSharding(mesh, spec)
        twins = Twins(lambda: lambda keys, x: (keys, jax.vmap(jax.random.normal)(keys) + x))
        for seed in range(4):
            twins(lambda seed=seed, place=place: (
                jax.device_put(jax.random.split(jax.random.key(seed), 8), place),
                jax.device_put(np.arange(8.0, dtype=np.float32), place),
            ))  # fmt: skip
        assert jit_counts() == (3, {"not_recorded": 1})


def test_trap_5_float0():
    """Trap 5: float0 as a result and as an argument."""
    gradient = Twins(lambda: jax.grad(lambda n: n * 1.0, allow_int=True))
    for _ in range(3):
        gradient(lambda: (jnp.int32(3),))
    zeros = np.zeros(3, jax.dtypes.float0)
    twins = Twins(lambda: lambda x, y: y + 1)
    for _ in range(3):
        twins(lambda: (zeros, jnp.ones(3)))
        twins(lambda: ([zeros, *several()], jnp.ones(3)))


class Text(np.ndarray):
    """A subclass of ndarray is not ndarray."""


class Float(float):
    """A subclass of float is not float."""


BAD = {
    "text": lambda: "text",
    "bytes": lambda: b"bytes",
    "object": object,
    "masked": lambda: np.ma.masked_array([1.0, 2.0, 3.0], [True, False, False]),
    "subclass": lambda: np.ones(3, np.float32).view(Text),
    "float subclass": lambda: Float(1.5),
    "big-endian": lambda: np.ones(3, ">f4"),
    "objects": lambda: np.array([1.0, None, 2.0]),
    "strings": lambda: np.array(["a", "b", "c"]),
    "string dtype": lambda: np.array(["a", "b", "c"], np.dtypes.StringDType()),
    "dates": lambda: np.zeros(3, "M8[s]"),
    "structured": lambda: np.zeros(3, [("a", "f4")]),
    "longdouble": lambda: np.ones(3, np.longdouble),
    "set": lambda: {1, 2},
    "aval": lambda: jax.ShapeDtypeStruct((3,), np.float32),
    "unsortable": lambda: {"a": jnp.ones(3), 1: jnp.ones(3)},
    "too large": lambda: 2**70,
    "too large 64": lambda: 2**31,
    "literal": lambda: literal(np.ones(3, np.float32)),
    "wrong type": lambda: np.float64(1e300),
    "none": lambda: None,
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("among", [False, True])
def test_trap_5_bad_arguments(kind, among):
    """Trap 5: what is no plain argument is accepted or refused as in plain JAX."""
    some = several() if among else []
    twins = Twins(lambda: lambda x, xs: jax.tree.map(lambda leaf: leaf + 1, x))
    for first in (jnp.ones(3), np.ones(3, np.float32), 1.5):
        for _ in range(2):
            twins(lambda first=first: (first, some))
        for _ in range(3):
            twins(lambda: (BAD[kind](), some))
    again = Twins(lambda: lambda x, xs: jax.tree.map(lambda leaf: leaf + 1, x))
    for _ in range(3):
        again(lambda: (BAD[kind](), some))
