"""What `test_platforms.py` runs on one platform: python platform_process.py cpu|cuda

Memory kinds, work that is queued, and transfers while it is, by plain JAX and by jaxmarshal. Prints
what differed and how many calls of each entry point were fast, as JSON.
"""

from __future__ import annotations

import json
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

import jaxmarshal
from jaxmarshal.selfcheck.observe import outcome
from jaxmarshal.selfcheck.runner import first_difference

SIZE = 256
DATA = np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE) / SIZE**2


def places():
    """Every memory of every device of the platform, a mesh of all, and the host's CPU."""
    found = {}
    for device in jax.devices():
        for memory in device.addressable_memories():
            found[f"{device}, {memory.kind}"] = SingleDeviceSharding(
                device, memory_kind=memory.kind
            )
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))
    found["all"] = NamedSharding(mesh, PartitionSpec())
    found["cpu"] = SingleDeviceSharding(jax.devices("cpu")[-1])
    return found


PLACES = places()


def queued(x):
    """Many computations one after the other, each on what the one before may still compute."""
    step = jax.jit(lambda x: x @ x / SIZE + 1)
    for _ in range(50):
        x = step(x)
    return x


def queued_and_donated(x):
    """The same in one buffer."""
    step = jax.jit(lambda x: x * 1.5 - 1, donate_argnums=0)
    x = jax.device_put(np.array(x), next(iter(x.devices())))
    for _ in range(50):
        x = step(x)
    return x


def moved_while_computed(x):
    """Results are sent elsewhere before they are there, and let go."""
    step = jax.jit(lambda x: jnp.sin(x @ x))
    return [jax.device_put(step(x + i), PLACES[name]) for i, name in enumerate(sorted(PLACES))]


def read_while_computed(x):
    """A result is read on the host while later ones are computed from it."""
    step = jax.jit(lambda x: x @ x / SIZE)
    first = step(x)
    later = [step(first) for _ in range(5)]
    return np.asarray(first), later


def cases():
    """(name, call of one array), with functions that each call jits anew."""
    yield from (
        (f"put in {name}", lambda x, to=to: [jax.device_put(x, to) for _ in range(3)][-1])
        for name, to in PLACES.items()
    )
    for call in (queued, queued_and_donated, moved_while_computed, read_while_computed):
        yield call.__name__, call

    def chained(x):
        step = jax.jit(lambda x: x + 1)
        return [step(step(x)) for _ in range(3)]

    def compiled(x):
        run = jax.jit(lambda x: (x * 2, x.sum())).lower(x).compile()
        return [run(x) for _ in range(3)]

    def operations(x):
        return [(x + x, x[0], jnp.zeros(3), jnp.asarray(DATA), -x) for _ in range(3)]

    def mixed(x):
        step = jax.jit(lambda xs, y: [x + y for x in xs])
        return [step([x] * 30, DATA) for _ in range(3)]

    yield from [(f.__name__, f) for f in (chained, compiled, operations, mixed)]


def main():
    divergences = []
    fast = {}
    for source in PLACES:
        for name, case in cases():
            make = partial(jax.device_put, DATA, PLACES[source])
            expected = outcome(case, make())
            with jaxmarshal.installed():
                jaxmarshal.reset_stats()
                found = outcome(case, make())
                for entry, counts in jaxmarshal.stats().items():
                    fast[entry] = fast.get(entry, 0) + counts["hits"]
            if found != expected:
                divergences.append(f"{name} of {source}: {first_difference(expected, found)}")
    print(json.dumps({"platform": sys.argv[1], "divergences": divergences, "fast": fast}))


if __name__ == "__main__":
    main()
