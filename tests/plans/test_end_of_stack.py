"""What owns plans dies where the stack is used up, and something else comes to lie there.

No Python function can be called at that moment, so what is to be told of it must not be one.
"""

from __future__ import annotations

import gc
import sys

import jax
import numpy as np
import pytest
from jax._src.interpreters import pxla

import jaxmarshal
from jaxmarshal._core.entries import jit
from jaxmarshal._core.values import live_objects

X = np.arange(4, dtype=np.float32)
TIMES = 40


def let_go(holder):
    """Empty a list at the end of the stack."""
    try:
        let_go(holder)
    except RecursionError:
        holder.clear()


def compiled(n):
    return jax.jit(lambda x: x + n).lower(jax.device_put(X)).compile()


def executable(n):
    made = compiled(n)._executable
    return made.call, made, lambda x: made.call(x)[0]


def unsafe(n):
    made = compiled(n)._executable.unsafe_call
    assert type(made) is pxla.ExecuteReplicated
    return made, made, lambda x: made(x)[0]


def ahead_of_time(n):
    made = compiled(n)
    return made, made, made


def jitted(n):
    made = jax.jit(lambda x: x + n)
    return made, made, made


def own_jit(n):
    made = jaxmarshal.jit(lambda x: x + n)
    return made, made, made


def of_one_place(n):
    """The function that is jitted dies, too."""
    def function(x):
        return x + n

    made = jax.jit(function)
    return made, made, made


def filtered(n):
    made = jaxmarshal.filter_jit(lambda x: x + n)
    return made, made, made


OWNERS = {
    "compiled_call": ahead_of_time, "mesh_executable_call": executable,
    "execute_replicated_call": unsafe, "jit": jitted, "jaxmarshal.jit": own_jit,
    "a function": of_one_place, "filter_jit": filtered,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", OWNERS)
def test_trap_2_another_owner_at_the_same_place(name, monkeypatch):
    """Trap 2: it does not find the plans of the one that died, and gets its own."""
    x = jax.device_put(X)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)    # JAX's own callbacks are Python
    entry = "jit" if name in ("jaxmarshal.jit", "a function") else name
    reused, hits, places = 0, [], set()
    with jaxmarshal.installed():
        for n in range(TIMES):
            _, owner, call = OWNERS[name](n)
            reused += id(owner) in places
            places.add(id(owner))
            jaxmarshal.reset_stats()
            for _ in range(4):
                np.testing.assert_array_equal(call(x), X + n)
            hits.append(jaxmarshal.stats()[entry]["hits"])
            holder = [owner, call]
            del _, owner, call
            let_go(holder)
            assert not holder
    assert hits[0] >= 2
    assert set(hits) == {hits[0]}, hits
    if not reused:
        pytest.skip("no address came back")


def test_plans_are_let_go():
    """They die with their owner there, too."""
    x = jax.device_put(X)
    gc.collect()
    before = live_objects.snapshot()["live_plans"]
    with jaxmarshal.installed():
        for n in range(TIMES):
            call = compiled(n)
            for _ in range(3):
                call(x)
            holder = [call]
            del call
            let_go(holder)
    jax.clear_caches()
    gc.collect()
    assert live_objects.snapshot()["live_plans"] <= before + 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_excluded_functions(monkeypatch):
    """One that was excluded and has died says nothing of another one at its place."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    places, reused = set(), 0
    with jaxmarshal.installed():
        for _ in range(TIMES):
            holder = [jaxmarshal.exclude(jax.jit(lambda x: x))]
            assert not jit.uses_plans(holder[0])
            places.add(id(holder[0]))
            let_go(holder)
            function = jax.jit(lambda x: x)
            assert jit.uses_plans(function)
            reused += id(function) in places
            del function
    if not reused:
        pytest.skip("no address came back")
