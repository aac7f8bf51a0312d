"""What plans of jitted and compiled functions share: keys, custom nodes, errors, donation."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LAYOUT_OFF
from jax.sharding import SingleDeviceSharding
from support import counts
from twins import Twins, jit_counts

import jaxmarshal
from jaxmarshal._core.values import array_words
from jaxmarshal._jax import private

X = np.arange(1, 5, dtype=np.float32)


class Backwards(str):
    """A string that sorts the other way round."""

    __hash__ = str.__hash__

    def __lt__(self, other):
        return str.__gt__(self, other)


KEYS = {
    "sorts the other way": (("a", "b"), (Backwards("a"), Backwards("b"))),
    "cannot be sorted": ((1, 2), (1 + 0j, 2 + 0j)),
    "other numbers": ((1, 2), (1.0, 2.0)),
    "one of them": ((0, 1), (0, True)),
    "numpy's": ((1, 2), (np.int64(1), np.int64(2))),
}


@pytest.mark.parametrize("kind", KEYS)
def test_trap_21_equal_keys_of_another_type(kind):
    """Trap 21: keys that are equal to the recorded ones may sort otherwise, or not at all."""
    usual, others = KEYS[kind]
    twins = Twins(lambda: lambda tree: [leaf * 2 for leaf in jax.tree.leaves(tree)])
    for _ in range(3):
        twins(lambda: ({usual[0]: jnp.ones(3), usual[1]: jnp.zeros(3)},))
    assert jit_counts()[0] == 2
    for _ in range(3):
        twins(lambda: ({others[0]: jnp.ones(3), others[1]: jnp.zeros(3)},))
    hits, _ = jit_counts()
    assert hits in (0, 1, 2)
    for _ in range(2):
        twins(lambda: ({usual[1]: jnp.ones(3), usual[0]: jnp.zeros(3)},))
    assert jit_counts()[0] == 2


def shapes(**arrays):
    return [leaf.shape for leaf in jax.tree.leaves(arrays)]


def of_jit():
    seen = []
    function = jax.jit(lambda **arrays: seen.append(shapes(**arrays)) or jax.tree.leaves(arrays))
    return lambda **arrays: (shapes(a=function(**arrays)), seen)


def of_static():
    function = jax.jit(lambda **arrays: jax.tree.leaves(arrays), static_argnames="c")
    return lambda **arrays: shapes(a=function(**arrays, c=1))


def ahead_of_time():
    function = jax.jit(lambda **arrays: jax.tree.leaves(arrays))
    compiled = function.lower(a=jnp.zeros(2), b=jnp.ones(3)).compile()
    return lambda **arrays: shapes(a=compiled(**arrays))


@pytest.mark.parametrize("make", [of_jit, of_static, ahead_of_time])
def test_trap_21_names_of_another_type(make):
    """Trap 21: names of arguments are sorted, and may be of any class of strings."""
    usual = {"a": jnp.zeros(2), "b": jnp.ones(3)}
    other = {Backwards(name): value for name, value in usual.items()}
    found = []
    for place in (contextlib.nullcontext, jaxmarshal.installed):
        with place():
            call = make()
            results = []
            for arrays in [usual] * 4 + [other] * 4 + [usual] * 2:
                try:
                    results.append(call(**arrays))
                except Exception as error:
                    results.append((type(error), str(error)))
            found.append(results)
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", KEYS)
def test_trap_21_targets_with_other_keys(kind):
    """Trap 21: the same for the keys of a dict of targets."""
    (first, second), others = KEYS[kind]
    tree = {first: jnp.zeros(2), second: jnp.ones(3)}
    device = jax.devices()[0]
    found = []
    for put in (jax.device_put, jaxmarshal.device_put):
        results = []
        for keys in [(first, second)] * 4 + [others] * 2:
            try:
                moved = put(tree, {keys[0]: device, keys[1]: None})
                results.append([leaf.committed for leaf in jax.tree.leaves(moved)])
            except Exception as error:
                results.append((type(error), str(error)))
        found.append(results)
    assert found[0] == found[1]


@jax.tree_util.register_pytree_node_class
class Counted:
    """A node that counts how often it is flattened."""

    flattened = 0

    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        Counted.flattened += 1
        return self.children, len(self.children)

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


class Asked:
    """A static argument that counts how often it is hashed."""

    hashed = 0

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        Asked.hashed += 1
        return hash(self.value)

    def __eq__(self, other):
        return self.value == other.value


def test_trap_18_custom_nodes_are_flattened_once():
    """Trap 18: a hit flattens a custom node once, however many signatures were recorded."""
    function = jaxmarshal.jit(lambda node: node.children[0])
    arguments = [Counted(*[jnp.ones(n)] * n) for n in range(1, 9)]
    for _ in range(3):
        for argument in arguments:
            function(argument)
    for argument in arguments:
        jaxmarshal.reset_stats()
        Counted.flattened = 0
        function(argument)
        assert (counts("jit"), Counted.flattened) == ((1, {}), 1)


def test_trap_18_static_arguments_are_hashed_once():
    """Trap 18: a hit hashes a static argument once, however many values were recorded."""
    function = jaxmarshal.jit(lambda x, s: x * s.value, static_argnums=1)
    x = jax.device_put(X)
    for _ in range(3):
        for n in range(8):
            function(x, Asked(n))
    for n in range(8):
        jaxmarshal.reset_stats()
        argument, Asked.hashed = Asked(n), 0
        function(x, argument)
        assert (counts("jit"), Asked.hashed) == ((1, {}), 1)


def test_trap_10_donated_and_used():
    """Trap 10: an array that is donated and used in one call fails as in jaxlib's C++."""
    found = []
    for place in (False, True):
        compiled = (
            jax.jit(lambda a, b: (a + b, a - b), donate_argnums=0)
            .lower(jnp.ones(4), jnp.ones(4)).compile()
        )  # fmt: skip
        if place:
            jaxmarshal.install()
        for _ in range(3):
            compiled(jnp.ones(4), jnp.ones(4))
        a = jnp.ones(4)
        with pytest.raises(ValueError) as raised:
            compiled(a, a)
        found.append((type(raised.value), str(raised.value)))
        jaxmarshal.uninstall()
    assert found[0] == found[1]


@pytest.mark.skipif(LAYOUT_OFF, reason="no plan is made without object layout")
@pytest.mark.parametrize("where", ["the recorded sharding", "an equal sharding"])
def test_trap_5_donated_arguments_are_found_by_the_guard(where):
    """Trap 5: what was donated is not handed to the executable, whose failure is logged by XLA."""
    device = jax.devices()[0]
    sharding = SingleDeviceSharding(device)
    jaxmarshal.install()
    give, take = jax.jit(lambda x: x + 1, donate_argnums=0), jax.jit(lambda x: x * 2)
    for _ in range(3):
        take(jax.device_put(X, sharding))
    if where == "an equal sharding":
        sharding = SingleDeviceSharding(device)
    x = jax.device_put(X, sharding)
    give(x)
    if array_words.describe()["data"] is None:
        pytest.skip("nothing but is_deleted() says that data of this backend were donated")
    jaxmarshal.reset_stats()
    with pytest.raises((RuntimeError, ValueError)):
        take(x)
    assert jaxmarshal.stats()["jit"]["misses_by_reason"] == {"deleted": 1}


ENTRIES = ("jit", "compiled_call", "mesh_executable_call", "execute_replicated_call", "bind",
           "functions", "getitem")  # fmt: skip

DONATED = """
import sys
import jax, jax.numpy as jnp
import jaxmarshal
if sys.argv[1] == "fast":
    jaxmarshal.install()
give = jax.jit(lambda x: x + 1, donate_argnums=0)
take = jax.jit(lambda x: x * 2)
compiled = take.lower(jnp.ones(5)).compile()
executable = compiled._executable
calls = dict(jit=take, compiled_call=compiled, mesh_executable_call=executable.call,
             execute_replicated_call=executable.unsafe_call, bind=jax.lax.neg_p.bind,
             functions=lambda x: jax.lax.neg(x), getitem=lambda x: x[1:])
for name, call in calls.items():
    for _ in range(4):
        call(jnp.ones(5))
    x = jnp.ones(5)
    jaxmarshal.reset_stats()
    call(x)
    assert sys.argv[1] != "fast" or jaxmarshal.stats()[name]["hits"] == 1, name
    give(x)
    for _ in range(2):
        try:
            call(x)
        except Exception as error:
            print(name, type(error).__name__, error, file=sys.stderr)
"""


def divide(lines):
    """The errors, and of each line of the log the entry point that the next error names."""
    errors, log, pending = [], [], 0
    for line in lines:
        if line.split(" ")[0] in ENTRIES:
            errors.append(line)
            log += [line.split(" ")[0]] * pending
            pending = 0
        else:
            pending += "ExecutePrepare" in line
    return errors, log


def test_trap_5_donated_arguments_and_the_log():
    """Trap 5: an array that was donated before is one error, and as many lines of jaxlib's log."""
    said = []
    for side in ("plain", "fast"):
        done = subprocess.run(
            [sys.executable, "-c", DONATED, side], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        said.append(done.stderr.splitlines())
    errors, log = zip(*(divide(lines) for lines in said), strict=True)
    assert errors[0] == errors[1] and len(errors[0]) == 2 * len(ENTRIES)
    assert log[0] == log[1]
    # jaxlib 0.10.1 and 0.10.2 run, fail and say so; earlier ones are silent, later ones look first.
    jaxlib = private.version_tuple(private.JAXLIB_VERSION)
    assert len(log[0]) == (8 if (0, 10, 1) <= jaxlib < (0, 11) else 0)
