"""`explain` says what the next call counts: of every entry point, in any state and context."""

from __future__ import annotations

import contextlib
import operator
import random
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from recipes import Node

import jaxmarshal
from jaxmarshal._jax import patching, private

#: Calls of one random program; a call is repeated until the back-off of refused ones is reached.
STEPS = 60
REPEATS = (1, 1, 2, 3, 12, 90)

MESH = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("i",))
SHARDED = NamedSharding(MESH, PartitionSpec("i"))


def deleted():
    """An array that is no more."""
    x = jnp.ones(4)
    x.delete()
    return x


def donated():
    """One that was given away."""
    x = jnp.ones(4)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    return x


LEAVES = {
    "array": lambda: jnp.ones(4),
    "another array": lambda: jnp.ones((2, 2), jnp.int32),
    "committed": lambda: jax.device_put(np.ones(4, np.float32), jax.devices()[0]),
    "elsewhere": lambda: jax.device_put(np.ones(4, np.float32), jax.devices()[1]),
    "sharded": lambda: jax.device_put(np.ones(4, np.float32), SHARDED),
    "numpy": lambda: np.ones(4, np.float32),
    "float64": lambda: np.ones(4),
    "int": lambda: 3,
    "float": lambda: 1.5,
    "bool": lambda: True,
    "numpy scalar": lambda: np.float32(2),
    "key": lambda: jax.random.key(0),
    "text": lambda: "text",
    "object": object,
    "None": lambda: None,
    "deleted": deleted,
    "donated": donated,
    "tracer-like": lambda: jnp.ones,
}  # fmt: skip


def tree(rng, deep=2):
    """A leaf, or a tree of a few."""
    kind = rng.choice(["leaf"] * 6 + ["list", "dict", "tuple", "node"])
    if kind == "leaf" or not deep:
        return LEAVES[rng.choice([*LEAVES, "array", "array", "numpy"])]()
    items = [tree(rng, deep - 1) for _ in range(rng.randrange(4))]
    if kind == "dict":
        return {f"k{i}": item for i, item in enumerate(items)}
    return {"list": list, "tuple": tuple, "node": lambda items: Node(*items)}[kind](items)


def wide(rng):
    """Arguments among which host data are few."""
    return [jnp.ones(4)] * 20 + [LEAVES[rng.choice(["numpy", "int", "array", "float64"])]()]


def batched(rng):
    """One part of an array, or several, for the devices of a sharding."""
    target = rng.choice([SHARDED, SingleDeviceSharding(jax.devices()[0])])
    part = LEAVES[rng.choice(["array", "numpy", "elsewhere", "deleted", "text"])]()
    aval = jax.core.ShapedArray((4 * target.num_devices,), np.float32)
    parts = [part] * rng.choice([target.num_devices, target.num_devices, 0])
    devices = list(target._device_assignment)
    return _install_found("batched_device_put"), (aval, target, parts, devices), {}


def of_libraries():
    """Calls of the fronts of libraries that are installed."""
    calls = {}
    with contextlib.suppress(ImportError):
        import equinox

        of_equinox = equinox.filter_jit(lambda x, y: x)
        calls["equinox_filter_jit"] = lambda rng: (of_equinox, (tree(rng, 1), tree(rng, 0)), {})
    with contextlib.suppress(ImportError):
        from flax import nnx

        of_nnx = nnx.jit(lambda x, y: x)
        calls["nnx_jit"] = lambda rng: (of_nnx, (tree(rng, 0), tree(rng, 0)), {})
    return calls


class World:
    """The functions that a random program calls."""

    def __init__(self):
        plain = jax.jit(lambda *xs: [leaf * 1 for leaf in jax.tree.leaves(xs)])
        compiled = jax.jit(lambda x, y: (x + y, {"y": y})).lower(jnp.ones(4), jnp.ones(4)).compile()
        checked = jax.jit(lambda x: jax.debug.callback(lambda: None) or x)
        refused = checked.lower(jnp.ones(4)).compile()
        self.static = jax.jit(lambda x, n: x, static_argnums=1)
        filtered = jaxmarshal.filter_jit(lambda x, y: x)
        self.calls = {
            "device_put": lambda rng: (
                jax.device_put, (tree(rng), *rng.choice(
                    [(), (), (None,), (jax.devices()[0],), (jax.devices()[1],), (SHARDED,),
                     (PartitionSpec("i"),), (PartitionSpec(),)])),
                rng.choice([{}, {}, {}, {"may_alias": False}, {"donate": True}])),
            "batched_device_put_impl": lambda rng: (
                _install_found("batched_device_put_impl"), (tree(rng, 0), tree(rng, 0)),
                {"devices": [rng.choice([None, jax.devices()[1], SHARDED]), None],
                 "srcs": [None, None], "copy_semantics": [private.REUSE_INPUT] * 2}),
            "batched_device_put": batched,
            "make_array_from_process_local_data": lambda rng: (
                jax.make_array_from_process_local_data,
                (rng.choice([SHARDED, SingleDeviceSharding(jax.devices()[1]), "x"]), tree(rng, 1),
                 *rng.choice([(), (), (None,), ((4,),), ((8,),)])), {}),
            "functions": lambda rng: (*rng.choice([
                (lax.neg, (tree(rng, 0),)), (lax.add, (tree(rng, 0), tree(rng, 0))),
                (jnp.stack, ([tree(rng, 0)] * 2,)), (jax.nn.relu, (tree(rng, 0),)),
                (jnp.reshape, (tree(rng, 0), rng.choice([4, (2, 2), "x"]))),
                (jax.random.split, (LEAVES["key"](), rng.randrange(1, 4))),
            ]), {}),
            "filter_jit": lambda rng: (filtered, (tree(rng, 1), tree(rng, 0)), {}),
            **of_libraries(),
            "jit": lambda rng: (plain, tuple(tree(rng) for _ in range(rng.randrange(3))), {}),
            "jit of many": lambda rng: (plain, tuple(wide(rng)), {}),
            "jit, static": lambda rng: (
                self.static, (LEAVES["array"](), rng.choice([1, 2, "a", [], object()])), {}),
            "jit, refused": lambda rng: (checked, (tree(rng, 0),), {}),
            "compiled_call": lambda rng: (compiled, (tree(rng, 0), tree(rng, 1)), {}),
            "compiled_call, refused": lambda rng: (refused, (LEAVES["array"](),), {}),
            "mesh_executable_call": lambda rng: (
                compiled._executable.call, (tree(rng, 0), tree(rng, 0)), {}),
            "execute_replicated_call": lambda rng: (
                compiled._executable.unsafe_call, (tree(rng, 0), LEAVES["array"]()), {}),
            "bind": lambda rng: (
                rng.choice([lax.neg_p, lax.sin_p]).bind, (tree(rng, 0),),
                rng.choice([{}, {"accuracy": None}])),
            "bind of two": lambda rng: (lax.add_p.bind, (tree(rng, 0), tree(rng, 0)), {}),
            "zeros": lambda rng: (jnp.zeros, (rng.choice([3, (2, 3), [2], "x", -1]),), rng.choice(
                [{}, {"dtype": "float32"}, {"dtype": jnp.int8}, {"device": jax.devices()[1]}])),
            "ones": lambda rng: (jnp.ones, (rng.randrange(20),), {}),
            "full": lambda rng: (
                jnp.full, (3, rng.choice([1, 1.5, True, "x", jnp.ones(3)])), {}),
            "asarray": lambda rng: (
                jnp.asarray, (tree(rng, 1),), rng.choice([{}, {}, {"dtype": int}])),
            "array": lambda rng: (jnp.array, (tree(rng, 1),), {}),
            "getitem": lambda rng: (operator.getitem, (
                LEAVES[rng.choice(["array", "another array", "sharded", "deleted", "donated"])](),
                rng.choice([0, 1, -1, slice(1, 3), (0, None), ..., jnp.ones(1, int), "x", 99])),
                {}),
            "shard_args": lambda rng: (_install_found("shard_args"), (
                [rng.choice([SHARDED, SingleDeviceSharding(jax.devices()[0])])], [None],
                [private.REUSE_INPUT], [tree(rng, 0)]), {}),
        }  # fmt: skip


def _install_found(name):
    """What is in the place of an entry point now."""
    (entry,) = [entry for entry in patching.ENTRY_POINTS if entry.name == name]
    return entry.accelerated if name in patching.installed_names() else entry.original


CONTEXTS = {
    "none": contextlib.nullcontext,
    "none again": contextlib.nullcontext,
    "x64": lambda: jax.enable_x64(True),
    "debug_nans": lambda: jax.debug_nans(True),
    "default device": lambda: jax.default_device(jax.devices()[1]),
    "precision": lambda: jax.default_matmul_precision("highest"),
    "disable_jit": jax.disable_jit,
    "guard": lambda: jax.transfer_guard("disallow"),
    "mesh": lambda: jax.set_mesh(MESH),
}  # fmt: skip


def counted(entry):
    """The counts of an entry point, by reason."""
    found = jaxmarshal.stats()[entry]
    return {"hit": found["hits"], **found["misses_by_reason"]}


def check(name, f, args, kwargs, agreed):
    """Ask, call, and compare; a call that counts more than once has to have counted that, too."""
    entry = name.partition(",")[0].partition(" ")[0]
    before = counted(entry)
    try:
        answer = jaxmarshal.explain(f, *args, **kwargs)
        again = jaxmarshal.explain(f, *args, **kwargs)
    except Exception:    # of the arguments' own
        answer = again = None
    assert counted(entry) == before, "to ask counts for nothing"
    try:
        f(*args, **kwargs)
    except Exception:
        # What fails on the fast path is no miss, and no hit either.
        if answer is not None and answer.hit:
            return
    after = counted(entry)
    added = {reason: n - before.get(reason, 0) for reason, n in after.items()}
    added = {reason: n for reason, n in added.items() if n}
    if answer is None:
        return
    assert (answer.reason, answer.leaf) == (again.reason, again.leaf)
    if not added:
        assert answer.reason == "unknown_function"
        return
    assert answer.entry_point == entry
    assert answer.reason in added
    if sum(added.values()) == 1:
        agreed[name] = agreed.get(name, 0) + 1
        agreed[answer.reason] = agreed.get(answer.reason, 0) + 1


def run(seed, steps):
    """A random program; how often what was said was what was counted, by call and by reason."""
    rng, agreed = random.Random(seed), {}
    with jaxmarshal.installed():
        world = World()
        for _ in range(steps):
            name = rng.choice([*world.calls])
            f, args, kwargs = world.calls[name](rng)
            with CONTEXTS[rng.choice([*CONTEXTS])]():
                for _ in range(rng.choice(REPEATS)):
                    check(name, f, args, kwargs, agreed)
    return agreed


@pytest.mark.parametrize("seed", range(8))
def test_explain_agrees_with_what_is_counted(seed):
    """The reason that `explain` gives is the one that the call then counts."""
    agreed = run(seed, STEPS)
    assert agreed["hit"] >= 20
    assert sum(agreed.values()) >= 300


@pytest.mark.slow
def test_explain_agrees_for_long():
    """The same for each kind of call, and for most reasons there are."""
    agreed = {}
    for seed in range(100, 116):
        for key, n in run(seed, STEPS).items():
            agreed[key] = agreed.get(key, 0) + n
    assert set(World().calls) <= set(agreed)
    unasked = {"xla_primitive_callable", "results_handler_call"}    # JAX alone calls them
    asked = {name.partition(",")[0].partition(" ")[0] for name in World().calls}
    assert {entry.name for entry in patching.ENTRY_POINTS} - unasked <= asked
    assert {"hit", "not_recorded", "host_leaves", "executable", "hook", "options"} <= set(agreed)


@pytest.mark.parametrize("seed", [100, 112])
def test_a_number_that_comes_in_often(seed):
    """Programs in which a number is kept as an array: from the call on that was said to be fast."""
    assert run(seed, 20)["hit"] >= 5


def test_a_refused_call_keeps_its_reason():
    """Beside a plan that it does not fit, whether attempts or looks at plans pause."""
    with jaxmarshal.installed():
        f = jax.jit(lambda x: x * 1)
        agreed = {}
        for _ in range(3):
            f(jnp.ones(4))
        for _ in range(200):
            check("jit", f, (np.ones(10_000, np.float32),), {}, agreed)
    assert agreed["host_leaves"] >= 199    # the first is compiled, and counts what is traced


def test_asking_changes_nothing():
    """However often it is asked, a call has its back-off, its plan and its pointers as before."""
    with jaxmarshal.installed():
        f = jax.jit(lambda x: x + 1)
        x = jnp.ones(3)
        for _ in range(3):
            f(x)
        jaxmarshal.reset_stats()
        for _ in range(100):
            assert jaxmarshal.explain(f, np.ones(10_000)).reason == "host_leaves"
        for _ in range(10):
            assert jaxmarshal.explain(f, x).hit
            f(x)
        assert jaxmarshal.stats()["jit"] == {"hits": 10, "misses": 0, "misses_by_reason": {}}


def test_asking_beside_a_thread_that_takes_steps():
    """What is asked about is not performed, while another thread replays `x[0]`."""
    traced, done = [], threading.Event()

    def program(x):
        traced.append(x)
        return x

    def replay(x):
        while not done.is_set():
            x[1:3, 0]

    interval = sys.getswitchinterval()
    with jaxmarshal.installed():
        x = jnp.ones((4, 4))
        for _ in range(4):
            x[1:3, 0]
        thread = threading.Thread(target=replay, args=(x,))
        sys.setswitchinterval(1e-6)
        thread.start()
        try:
            for _ in range(2000):
                assert jaxmarshal.explain(jax.jit(program), x).reason == "not_recorded"
        finally:
            done.set()
            thread.join()
            sys.setswitchinterval(interval)
    assert traced == []


def test_a_flatten_function_that_calls():
    """What custom nodes call while they are taken apart is performed."""
    inner = jax.jit(lambda x: x * 2)
    seen = []

    @jax.tree_util.register_pytree_node_class
    class Calling(Node):
        def tree_flatten(self):
            seen.append(float(inner(jnp.ones(())))
                        + (1 if jaxmarshal.explain(inner, jnp.ones(())).hit else 0))
            return super().tree_flatten()

    with jaxmarshal.installed():
        f = jax.jit(lambda x: x.children[0] + 1)
        for _ in range(3):
            f(Calling(jnp.ones(3)))
        seen.clear()
        assert jaxmarshal.explain(f, Calling(jnp.ones(3))).hit
        assert seen and set(seen) == {3.0}
