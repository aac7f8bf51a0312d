"""One of several processes that run the same programs together; see `test_distributed`.

Arguments: the coordinator's port, the number of processes, the number of this one, a file that JSON
objects are appended to, a line each, and what is to be done.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=2 --xla_cpu_multi_thread_eigen=false"
)

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import pxla
from jax._src.lib import xla_client
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from observe import observe

import jaxmarshal

PORT, COUNT, NUMBER = map(int, sys.argv[1:4])
REPORT, *TASK = sys.argv[4:]
P = PartitionSpec
TURNS = 3


def report(facts: dict) -> None:
    with open(REPORT, "a") as lines:
        lines.write(json.dumps(facts) + "\n")


def start() -> None:
    """Join the others. jaxmarshal is imported, as in a program that begins with that."""
    faulthandler.dump_traceback_later(300, exit=True)    # not to be left behind, whatever happens
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{PORT}", COUNT, NUMBER, initialization_timeout=200,
        # A machine with much to do can keep a process waiting for longer than it takes to die.
        heartbeat_timeout_seconds=15 if TASK[0] == "orphaned" else 250,
    )
    assert jax.process_count() == COUNT
    assert len(jax.devices()) == 2 * COUNT


def shardings() -> dict:
    """Over all processes, over some, over this one alone."""
    everyone = jax.sharding.Mesh(np.asarray(jax.devices()).reshape(COUNT, 2), ("p", "d"))
    # The devices of each process apart, and in another order.
    apart = jax.sharding.Mesh(np.asarray(jax.devices()).reshape(COUNT, 2).T[::-1], ("d", "p"))
    here = jax.sharding.Mesh(np.asarray(jax.local_devices()), ("d",))
    return {
        "rows": NamedSharding(everyone, P(("p", "d"))),
        "rows and columns": NamedSharding(everyone, P("p", "d")),
        "rows apart": NamedSharding(apart, P(("d", "p"))),
        "partly replicated": NamedSharding(everyone, P(None, "d")),
        "replicated": NamedSharding(everyone, P()),
        "local rows": NamedSharding(here, P("d")),
        "local": jax.sharding.SingleDeviceSharding(jax.local_devices()[1]),
    }


def matrix(dtype: str = "float32") -> np.ndarray:
    return np.arange(64, dtype=dtype).reshape(8, 8)


def make(sharding, dtype: str = "float32"):
    """An array of which each process places its part."""
    data = matrix(dtype)
    return jax.make_array_from_callback(data.shape, sharding, lambda index: data[index])


def programs() -> dict:
    """Name of a program: what it sees. All processes run all of them, in the same order."""
    places = shardings()
    wide = [name for name in places if not name.startswith("local")]

    def puts():
        for sharding in places.values():
            for value in (matrix, lambda: 1.5, lambda: [matrix(), matrix("int32")]):
                yield lambda v=value, s=sharding: jax.device_put(v(), s)
            yield lambda s=sharding: jax.device_put(make(s), s)
        yield lambda: jax.device_put(matrix())
        yield lambda: jax.device_put(make(places["rows"]))
        yield lambda: jax.device_put(make(places["rows"]), places["replicated"])
        yield lambda: jax.device_put(matrix(), jax.devices()[0])    # of the first process
        # Each process has another value: all of them are told.
        yield lambda: jax.device_put(matrix() + NUMBER, places["rows"])
        for where in (jax.local_devices()[1], places["local"], places["local rows"], None):
            yield lambda w=where: jax.device_put({"a": matrix("float64"), "b": [True]}, w)
            yield lambda w=where: jax.device_put(jnp.asarray(matrix()), w)
            yield lambda w=where: jax.device_put(jnp.asarray(matrix()), w, may_alias=False)
        yield lambda: jax.device_put(jnp.asarray(matrix()), jax.devices()[0])
        yield lambda: jax.device_put(
            [matrix(), make(places["rows"])], [jax.local_devices()[0], places["rows"]]
        )
        for value in (matrix(), matrix("int64"), np.float32(2), 1.5, True, [1.0, 2.0]):
            yield lambda v=value: jnp.asarray(v)
            yield lambda v=value: jnp.array(v)

    def arguments():
        """What executables in Python have placed."""
        for sharding in places.values():
            for x in (matrix(), matrix("float64"), make(sharding)):
                yield lambda x=x, s=sharding: pxla.shard_args(
                    [s], [None], [xla_client.ArrayCopySemantics.REUSE_INPUT], [x]
                )

    def parts():
        """Of an array over several processes each one has a part, or all of the data."""
        lines = slice(8 * NUMBER // COUNT, 8 * (NUMBER + 1) // COUNT)
        kinds = (matrix, lambda: matrix("float64") * 1e9, lambda: matrix()[:, ::2].T[:8])
        put = jax.make_array_from_process_local_data
        for sharding in places.values():
            for kind in kinds:
                yield lambda s=sharding, k=kind: put(s, k()[lines])
                yield lambda s=sharding, k=kind: put(s, k())
                yield lambda s=sharding, k=kind: put(s, k(), k().shape)
                yield lambda s=sharding, k=kind: put(s, k()[lines], (8, 8))
            yield lambda s=sharding: put(s, {"x": matrix()[lines], "y": [matrix("int8")[lines]]})
            yield lambda s=sharding: put(s, [matrix()[lines, 1], matrix()[:0], np.ones(())])
        rows, copies = places["rows"], places["replicated"]
        yield lambda: put({"x": rows, "y": copies}, {"x": matrix()[lines], "y": matrix()})
        yield lambda: put(rows, matrix("float64")[lines] * 1e300)    # numpy warns
        yield lambda: put(rows, matrix()[lines].astype("U2"))
        yield lambda: put(rows, np.ma.masked_less(matrix()[lines], 3))
        yield lambda: put(rows, jnp.asarray(matrix()[lines]))
        yield lambda: put(P("p"), matrix()[lines])
        yield lambda: put(rows, matrix()[:3])
        yield lambda: put(rows, None)
        yield lambda: put(rows)

    def compiled():
        for name, sharding in places.items():
            run = jax.jit(lambda x, n: {"y": x * n, "sum": x.sum(axis=0)}).lower(
                make(sharding), 2.0
            ).compile()    # fmt: skip
            yield lambda run=run, s=sharding: run(make(s), 3.0)    # a scalar is host data
            run = jax.jit(lambda x, y: [x + y, (x * y).sum()]).lower(
                make(sharding), make(sharding)
            ).compile()    # fmt: skip
            yield lambda run=run, s=sharding: run(make(s), make(s))
            yield lambda run=run, s=sharding: run._executable.call(make(s), make(s))
            yield lambda run=run, s=sharding: run._executable.unsafe_call(make(s), make(s))
            yield lambda run=run, s=sharding: run(make(s), make(s, "int32"))
            for other in wide:    # placed as another
                if name in wide:
                    yield lambda run=run, s=sharding, o=places[other]: run(make(s), make(o))
        run = jax.jit(lambda x: x + 1, donate_argnums=0).lower(make(places["rows"])).compile()
        yield lambda: run(make(places["rows"]))
        big = {"a": [make(places["rows"])] * 30, "b": make(places["replicated"])}
        tree = jax.jit(lambda t: jax.tree.map(lambda x: x * 2, t)).lower(big).compile()
        yield lambda: tree(big)
        many = [make(places["rows"])] * 90
        scaled = jax.jit(lambda xs, n: [x * n for x in xs]).lower(many, 2.0).compile()
        yield lambda: scaled(many, 3.0)    # host data among many arrays
        by_host = jax.jit(lambda x: x * 2, in_shardings=places["replicated"]).lower(matrix())
        by_host = by_host.compile()
        yield lambda: by_host(matrix())
        yield lambda: by_host._executable.call(matrix())
        constant = make(places["replicated"])
        with_constant = jax.jit(lambda x: x + constant).lower(make(places["rows"])).compile()
        yield lambda: with_constant(make(places["rows"]))

    def jitted():
        for sharding in places.values():
            function = jax.jit(lambda x: (x @ x.T, x.max()))
            yield lambda f=function, s=sharding: f(make(s))
        function = jax.jit(lambda x: x * 2, out_shardings=places["replicated"])
        yield lambda: function(make(places["rows"]))
        placed = jax.jit(lambda x: x * 2, in_shardings=places["rows"])
        yield lambda: placed(matrix())

    def eager():
        for sharding in places.values():
            yield lambda s=sharding: make(s) + 1
            yield lambda s=sharding: make(s)[0]
            yield lambda s=sharding: jnp.sum(make(s))
        yield lambda: np.asarray(make(places["rows"]))    # an error: not all of it is here
        yield lambda: jnp.zeros(3)

    def elsewhere():
        """With arrays of which no part is here."""
        devices = [d for d in jax.devices() if d.process_index != NUMBER]
        for there in (
            NamedSharding(jax.sharding.Mesh(np.asarray(devices), ("d",)), P("d")),
            jax.sharding.SingleDeviceSharding(devices[0]),
        ):
            # Several: what such an array has in the place of its data is what was there before.
            arrays = [
                jax.make_array_from_single_device_arrays((12,), there, [], dtype=np.float32)
                for _ in range(30)
            ]
            function = jax.jit(lambda x, y: x + y)
            for x in arrays:
                yield lambda x=x, f=function: f(x, x)
                yield lambda x=x: x + 1
                yield lambda x=x: jnp.stack([x, x])

    return {
        "device_put": puts, "shard_args": arguments, "parts": parts, "compiled": compiled,
        "jit": jitted, "eager": eager, "elsewhere": elsewhere,
    }


def see(program) -> list:
    """What each call of a program, made several times, is observed to do."""
    return [observe(call) for call in program() for _ in range(TURNS)]


def compare() -> dict:
    """Every program with plain JAX, then with jaxmarshal: the calls that differ, and the counts."""
    differences, seen = [], {}
    for name, program in programs().items():
        expected = see(program)
        with jaxmarshal.installed():
            found = see(program)
        seen[name] = len(found)
        assert len(found) == len(expected)
        differences += [
            (name, number, str(one)[:2000], str(two)[:2000])
            for number, (one, two) in enumerate(zip(expected, found, strict=True))
            if one != two
        ]
    return {"differences": differences, "seen": seen, "stats": jaxmarshal.stats()}


def mixed() -> dict:
    """Half of the processes have jaxmarshal installed, and all compute together."""
    if NUMBER % 2:
        jaxmarshal.install()
    sharding = shardings()["rows"]
    run = jax.jit(lambda x: x + x.sum()).lower(make(sharding)).compile()
    x = make(sharding)
    scaled = jax.jit(lambda x: x * 2, in_shardings=shardings()["replicated"]).lower(matrix())
    scaled = scaled.compile()._executable
    for _ in range(20):
        # One computation at a time: with several in flight gloo's can wait for each other for ever.
        x = jax.block_until_ready(run(x))
        x = jax.block_until_ready(x * 0.5)
        # Placing host data is never recorded: the others would not know.
        jax.block_until_ready(scaled.call(matrix()))
    total = jax.jit(lambda x: x.sum(), out_shardings=shardings()["replicated"])(x)
    return {"total": float(total), "stats": jaxmarshal.stats()}


def numbered(shape: tuple, sharding=None):
    """An array of which each process places its part; without a sharding, where JAX puts it."""
    data = np.random.default_rng(len(shape)).integers(0, 9, shape).astype("int32")
    if sharding is None:
        return jnp.asarray(data)
    if len(sharding.device_set) == 1:
        parts = [jax.device_put(data, d) for d in sharding.device_set if d.process_index == NUMBER]
        return jax.make_array_from_single_device_arrays(
            shape, sharding, parts, dtype=data.dtype
        )
    return jax.make_array_from_callback(shape, sharding, lambda index: data[index])


def kinds() -> dict:
    """Trees whose leaves are placed alike: over all processes, over some, over this one alone."""
    places = shardings()
    names = {
        "copies": "replicated", "rows": "rows", "here": "local", "rows here": "local rows",
        "other axes": "rows and columns",
    }  # fmt: skip
    where = {kind: places[place] for kind, place in names.items()}
    # The device that comes first is another process's for all of them but one.
    two = np.asarray([jax.devices()[0], jax.devices()[-1]])
    if COUNT == 2:
        where["copies on two"] = NamedSharding(jax.sharding.Mesh(two, ("d",)), P())
    where["anywhere"] = None
    where["of the first process"] = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = [(8, 2), (8, 4), (16, 2), (8, 2, 2), (24, 2)]
    return {
        kind: [numbered(shape, sharding) for shape in shapes] for kind, sharding in where.items()
    }


def facts(tree) -> list:
    """Everything that has to be the same about the leaves of a tree."""
    return [
        (x.shape, str(x.dtype), x.committed, str(x.sharding),
         [(s.device.id, s.data.tolist()) for s in x.addressable_shards])
        for x in jax.tree.leaves(tree)
    ]    # fmt: skip


def packing() -> dict:
    """Packed trees and carries over several processes: groups, and what differs from plain JAX."""
    differences, groups = [], {}

    def step(tree, n):
        return jax.tree.map(lambda x: x * 2 + n, tree), n + 1

    def compare(what, expected, found):
        if facts(expected) != facts(found):
            differences.append([what, facts(expected), facts(found)])

    trees = kinds()
    for kind, tree in {"all of them": trees, **trees}.items():
        packed = jaxmarshal.pack(tree)
        groups[kind] = packed._plan.groups
        compare(f"{kind}: unpacked", tree, jax.block_until_ready(packed.unpack()))
        if kind == "all of them":    # no one computation takes all of these
            continue
        compare(f"{kind}: a leaf", tree[1], jax.block_until_ready(packed[1]))
        plain = jax.jit(step)
        for donate in (False, True):
            fast = jaxmarshal.carry(step, donate=donate)
            expected, state = tree, jaxmarshal.pack(tree)
            for i in range(3):
                # One computation at a time, as in `mixed`.
                expected, _ = jax.block_until_ready(plain(expected, np.int32(i)))
                state, _ = jax.block_until_ready(fast(state, np.int32(i)))
            compare(f"{kind}: carried", expected, jax.block_until_ready(state.unpack()))
    return {"differences": differences, "groups": groups}


def orphaned() -> dict:
    """The last process dies; the others go on with what needs it, and report how that ends."""
    if TASK[1] == "jaxmarshal":
        jaxmarshal.install()
    places = shardings()
    run = jax.jit(lambda x: x + x.sum()).lower(make(places["rows"])).compile()
    for _ in range(3):
        jax.block_until_ready(run(make(places["rows"])))
    multihost_utils.sync_global_devices("all have done their part")
    report({"hits": jaxmarshal.stats()["compiled_call"]["hits"]})
    if NUMBER == COUNT - 1:
        os._exit(0)
    x = make(places["rows"])
    try:
        for _ in range(100):
            x = jax.block_until_ready(run(x))
        outcome = "nothing happened"
    except Exception as error:
        outcome = f"{type(error).__name__} was raised"
    report({"outcome": outcome})
    os._exit(0)    # an ordinary end would wait for the dead


start()
tasks = {"compare": compare, "mixed": mixed, "packing": packing, "orphaned": orphaned}
result = tasks[TASK[0]]()
jax.distributed.shutdown()
report(result)
