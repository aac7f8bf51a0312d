"""Objects that are not what their type says, given to warm functions; a process of its own.

`python crash.py SIDE FIRST` prints a line of JSON for each case from the FIRST on. A case that ends
the process leaves its name as the last line. `test_objects` sets the environment.
"""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from harness import plain
from jax import lax
from jax._src.interpreters import pxla
from jax._src.lib import xla_client
from jax.sharding import SingleDeviceSharding
from support import aligned

import jaxmarshal


def new(kind):
    """An object that nothing has filled in."""
    return kind.__new__(kind)


def array():
    return jax.device_put(aligned(8))


def key():
    return jax.random.key(0)


def deleted(make):
    x = make()
    x.delete()
    return x


def donated():
    x = array()
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    return x


def broken_key():
    """A typed key whose data are gone."""
    x = key()
    x._base_array.delete()
    return x


#: How the argument is made.
OBJECTS = {
    "uninitialised": lambda: new(type(array())),
    "deleted": lambda: deleted(array),
    "donated": donated,
    "uninitialised key": lambda: new(type(key())),
    "key without data": broken_key,
    "uninitialised numpy scalar": lambda: new(np.float32),
}


def functions():
    """What is called, with what it is warmed up with."""
    device, other = jax.devices()[0], jax.devices()[3]
    function = jax.jit(lambda x: x)
    many = jax.jit(lambda x, *xs: x)
    donating = jax.jit(lambda x: x, donate_argnums=0)
    compiled = jax.jit(lambda x: x).lower(array()).compile()
    executable = compiled._executable
    reuse = xla_client.ArrayCopySemantics.REUSE_INPUT
    single = SingleDeviceSharding(device)
    rest = [array() for _ in range(20)]
    return {
        "device_put": jax.device_put,
        "device_put to its device": lambda x: jax.device_put(x, device),
        "device_put to another": lambda x: jax.device_put(x, other),
        "device_put of a tree": lambda x: jax.device_put({"a": [x, 1.0]}, device),
        "shard_args": lambda x: pxla.shard_args([single], [None], [reuse], [x]),
        "jit": function,
        "jit of many": lambda x: many(x, *rest),
        "jit, donated": donating,
        "compiled": compiled,
        "MeshExecutable.call": executable.call,
        "unsafe_call": executable.unsafe_call,
        "lax.neg": lax.neg,
        "lax.add": lambda x: lax.add(x, x),
        "neg_p.bind": lax.neg_p.bind,
        "an operator": lambda x: x + 1,
        "asarray": jnp.asarray,
        "array": jnp.array,
        "getitem": lambda x: x[0],
        "slice": lambda x: x[1:3],
        "sin": jnp.sin,
    }


#: Objects in the place of a function.
CALLED = {
    "uninitialised jitted function": lambda: new(type(jax.jit(lambda x: x))),
    "uninitialised Compiled": lambda: new(jax.stages.Compiled),
    "uninitialised MeshExecutable": lambda: new(pxla.MeshExecutable).call,
    "uninitialised ExecuteReplicated": lambda: new(pxla.ExecuteReplicated),
}
#: Objects in the place of a target.
TARGETS = {
    "uninitialised sharding": lambda: new(SingleDeviceSharding),
    "uninitialised named sharding": lambda: new(jax.sharding.NamedSharding),
}


def cases():
    """(name, what is done)."""
    warm = functions()
    for function in warm.values():
        for _ in range(3):
            function(array())
    for name, make in OBJECTS.items():
        for about, function in warm.items():
            yield f"{about}, {name}", lambda make=make, function=function: function(make())
    for name, make in CALLED.items():
        yield name, lambda make=make: make()(array())
    for name, make in TARGETS.items():
        yield name, lambda make=make: jax.device_put(aligned(8), make())
        yield f"{name}, array", lambda make=make: jax.device_put(array(), make())


def main(side, first):
    if side == "jaxmarshal":
        jaxmarshal.install()
    for number, (name, case) in enumerate(cases()):
        if number < first:
            continue
        print(json.dumps([name]), flush=True)
        try:
            result = case()
            outcome = ["returned", type(result).__name__]
        except Exception as error:
            outcome = ["raised", type(error).__name__, plain(str(error))[:300]]
        print(json.dumps([name, outcome]), flush=True)
    hits = sum(counts["hits"] for counts in jaxmarshal.stats().values())
    print(json.dumps(["hits", hits]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
