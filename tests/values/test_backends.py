"""Several backends in one process: arrays of each are compared by words that it vouches for.

Runs where there is a second backend beside the CPU's: `make plugin`, or a machine with a GPU.
"""

from __future__ import annotations

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_code
from conftest import LAYOUT_OFF
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from observe import observe
from support import aligned, same_as_jax
from twins import Twins, jit_counts

import jaxmarshal
from jaxmarshal._core.entries import executables
from jaxmarshal._core.values import array_words


def platforms():
    """One device of each backend, by its name, the default one first."""
    default = jax.local_devices()[0]
    found = {"default": default}
    try:
        cpu = jax.local_devices(backend="cpu")[-1]
    except RuntimeError:
        return found
    if cpu.client is not default.client:
        found["cpu"] = cpu
    return found


pytestmark = [
    pytest.mark.skipif(LAYOUT_OFF, reason="the object layout is switched off"),
    pytest.mark.skipif(
        len(platforms()) < 2, reason="NOT DONE: one backend only; `make plugin` has two"
    ),
]
BOTH = ["default", "cpu"]


def place(name, data=None, columns=False):
    """An array on a backend; with `columns`, its columns lie in a row."""
    data = aligned((4, 6)) if data is None else data
    sharding = SingleDeviceSharding(platforms()[name])
    return jax.device_put(data, Format(Layout((1, 0)), sharding) if columns else sharding)


def test_each_backend_vouches_for_its_own():
    """Words are looked for with samples of each client, when the first plan is made for it."""
    jax.extend.backend.clear_backends()
    function = jaxmarshal.jit(lambda x: x + 1)
    for number, name in enumerate(BOTH, 1):
        function(place(name))
        found = array_words.describe()["clients"]
        assert len(found) == number and all(found.values()), found
    assert array_words.describe()["notes"] == []


def test_one_function_on_both_backends():
    """A plan for each, and each call takes the one that belongs to its arrays."""
    twins = Twins(lambda: lambda x, y: (x * 2 + y, [y.T]))
    for name in BOTH * 3:
        twins(lambda name=name: (place(name), place(name)))
        result = twins.fast(place(name), place(name))
        assert result[0].devices() == {platforms()[name]}
    assert jit_counts() == (10, {"not_recorded": 1, "sharding": 1})


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("ahead", [False, True], ids=["jit", "ahead of time"])
def test_trap_1_custom_layouts_on_each_backend(name, ahead):
    """Trap 1: a column-major array between row-major ones, on either backend."""

    def function(x):
        return x * 3 - x[:, :1]

    plain, fast = jax.jit(function), jaxmarshal.jit(function)
    if ahead:
        plain = plain.lower(place(name)).compile()
        fast = functools.partial(executables.compiled_call, plain)
    for columns in (False, False, True, False, True, True, False):
        jaxmarshal.reset_stats()
        expected = observe(plain, place(name, columns=columns))
        assert observe(fast, place(name, columns=columns)) == expected
    entry = jaxmarshal.stats()["compiled_call" if ahead else "jit"]
    assert (entry["hits"], entry["misses"]) == (1, 0)


@pytest.mark.parametrize("name", BOTH)
def test_trap_1_results_in_a_custom_layout(name):
    """Trap 1: a step that is fed its own results, which come in another layout."""
    sharding = SingleDeviceSharding(platforms()[name])
    columns = Format(Layout((1, 0)), sharding)

    def loop(jit):
        make = jit(lambda x: x + 1, out_shardings=columns)
        use = jit(lambda x: x * 2 - x[:1])
        x, seen = place(name), []
        for _ in range(3):
            x = make(use(x))
            seen.append(np.asarray(use(x)).tolist())
        return seen, str(x.format)

    assert loop(jaxmarshal.jit) == loop(jax.jit)


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("source", BOTH)
@pytest.mark.parametrize("target", BOTH)
def test_arrays_that_move_between_backends(source, target, columns):
    """`device_put` from one to the other and on to the next computation."""
    device = platforms()[target]

    def make():
        return place(source, columns=columns)

    same_as_jax(make, SingleDeviceSharding(device))
    if source != target:
        same_as_jax(make, device, reasons={"not_recorded": 1, "target": 2})
    twins = Twins(lambda: lambda x: x[::-1] * 2)
    for _ in range(3):
        twins(lambda: (jaxmarshal.device_put(make(), device),))


def test_arguments_of_both_backends():
    """Committed to different platforms is JAX's error; an uncommitted one follows the other."""
    twins = Twins(lambda: lambda x, y: x + y)
    for _ in range(3):
        twins(lambda: (place("default"), place("default")))
    for pair in (("default", "cpu"), ("cpu", "default")):
        for _ in range(3):
            outcome, *_rest = twins(lambda pair=pair: (place(pair[0]), place(pair[1])))
            assert outcome[0] == "raised"
    for _ in range(3):
        twins(lambda: (jnp.ones((4, 6)), place("cpu")))
    assert jit_counts()[0] >= 2


def test_a_mesh_of_each_backend():
    """Arrays over all devices of a backend are vouched for like those on one."""
    for name in BOTH:
        devices = np.asarray(jax.local_devices(backend=platforms()[name].platform
                                               if name == "cpu" else None))  # fmt: skip
        sharding = NamedSharding(jax.sharding.Mesh(devices, ("x",)), PartitionSpec("x"))
        data = aligned((8 * len(devices), 2))
        twins = Twins(lambda: lambda x: x + 1)
        for _ in range(3):
            twins(lambda data=data, to=sharding: (jax.device_put(data, to),))
        assert jit_counts() == (2, {"not_recorded": 1})


def test_operations_on_each_backend():
    """`x + y`, `x[0]`, `-x` outside `jit`, on arrays of either backend in turns."""

    def operations(x):
        return [x + x, -x, x[0], x[1:, 2], x.reshape(-1), jnp.asarray(x)]

    expected = {name: observe(operations, place(name)) for name in BOTH}
    with jaxmarshal.installed():
        for name in BOTH * 3:
            assert observe(operations, place(name)) == expected[name]
        assert jaxmarshal.stats()["bind"]["hits"] > 0


DROPPED = """
    import gc, weakref
    import jax, numpy as np, jaxmarshal
    from jax.extend import backend
    from jaxmarshal._core.values import array_words

    for turn in range(3):
        function = jaxmarshal.jit(lambda x: x + 1)
        for device in {jax.devices()[0], jax.devices("cpu")[0]}:
            x = jax.device_put(np.ones(4, np.float32), device)
            for _ in range(3):
                assert function(x).tolist() == [2] * 4
        assert len(array_words.describe()["clients"]) == 2, array_words.describe()
        assert jaxmarshal.stats()["jit"]["hits"] == 4 * (turn + 1), jaxmarshal.stats()["jit"]
        del x, function, device
        backend.clear_backends()
        assert array_words.describe()["clients"] == {}
"""


def test_backends_are_let_go():
    """After `clear_backends` nothing stands for the old clients, and new ones are looked at."""
    run_code(DROPPED)
