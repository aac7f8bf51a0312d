"""What `test_constants.py` runs where constants are arguments, which JAX decides when imported."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from executed import counts, observe_reference
from jitted import on, spread
from observe import observe
from test_jit_arguments import (  # noqa: F401
    test_trap_5_constants_hit,
    test_trap_5_constants_that_are_arguments,
)
from twins import Twins, jit_counts

import jaxmarshal
from jaxmarshal import dispatch

DATA = np.arange(4096, dtype=np.float32)


def test_constants_are_arguments():
    """Else nothing is checked here."""
    constant = jax.device_put(DATA)
    compiled = jax.jit(lambda x: x + constant).lower(DATA).compile()
    assert len(compiled._params.const_args) == 1


def test_compiled_functions():
    """Constants of a function compiled ahead of time, with arguments of every kind beside them."""
    for place in (jax.device_put, lambda data: on(3, data), spread):
        first, second = place(DATA), place(DATA * 2)
        x, unused, y = place(DATA + 1), place(DATA), place(DATA + 2)
        compiled = (
            jax.jit(lambda x, unused, y, a=first, b=second: (x * a, y - b, a), keep_unused=False)
            .lower(x, unused, y).compile()
        )  # fmt: skip
        with jaxmarshal.installed():
            for i in range(4):
                args = (place(DATA + i), unused, y)
                assert observe(compiled, *args) == observe_reference(compiled, *args)
            assert counts() == (3, 1)
            elsewhere = on(5, DATA), unused, y
            assert observe(compiled, *elsewhere) == observe_reference(compiled, *elsewhere)
            counts()


def test_several_constants_and_pruned_arguments():
    """Each constant goes where it belongs, whichever arguments are kept."""
    constants = [jax.device_put(DATA + i) for i in range(3)]
    twins = Twins(
        lambda: lambda x, unused, y: (constants[2] - x, constants[0] * y, constants[1]),
    )
    for i in range(4):
        twins(lambda i=i: (jnp.full(4096, i), jnp.zeros(3), jnp.full(4096, i + 1.0)))
    assert jit_counts() == (3, {"not_recorded": 1})


def compile_with_plans(function):
    """A function compiled ahead of time, called through its entry point in jaxmarshal."""
    compiled = jax.jit(function).lower(jnp.ones(4096)).compile()
    return lambda x: dispatch.compiled_call(compiled, x)


BOTH = pytest.mark.parametrize(
    "make",
    [
        (jax.jit, jaxmarshal.jit),
        (lambda f: jax.jit(f).lower(jnp.ones(4096)).compile(), compile_with_plans),
    ],
    ids=["jit", "compiled"],
)


@BOTH
def test_constants_of_numpy_that_are_edited(make):
    """Data of the host are placed as often as in JAX: what is written later is seen as there."""
    weak = jax.lax.full((4096,), 1.0)    # of another aval, which a Compiled takes as well
    assert weak.weak_type
    arrays = [jnp.ones(4096), weak]
    if make[0] is jax.jit:
        arrays.append(jnp.ones((1, 4096)))
    found = []
    for wrap in make:
        constant = DATA.copy()
        function = wrap(lambda x, c=constant: x + c)
        outcomes = []
        jaxmarshal.reset_stats()
        for value, order in ((100, arrays), (200, arrays[::-1])):
            for x in order:
                outcomes += [observe(function, x)[0][:3] for _ in range(4)]
                constant[:] = value
                outcomes += [observe(function, x)[0][:3] for _ in range(4)]
        found.append(outcomes)
        hits = sum(jaxmarshal.stats()[name]["hits"] for name in ("jit", "compiled_call"))
    assert found[0] == found[1]
    assert hits >= 16


@BOTH
def test_constants_of_numpy_are_on_the_device_once(make):
    """However many plans there are, there are as many arrays on the device as in JAX."""
    found = []
    for wrap in make:
        constant = DATA.copy()
        function = wrap(lambda x, c=constant: x + c)
        function(jnp.ones(4096)).block_until_ready()
        gc.collect()
        before = len(jax.live_arrays())
        for i in range(6):
            x = jnp.ones((i + 1, 4096)) if make[0] is jax.jit else jax.lax.full((4096,), 1.0 * i)
            for _ in range(3):
                function(x).block_until_ready()
        del x
        gc.collect()
        found.append(len(jax.live_arrays()) - before)
    assert found[0] == found[1]


@pytest.mark.parametrize("place", [jax.device_put, spread])
@BOTH
def test_deleted_constants(make, place):
    """Constants that are deleted, before or after a plan was made, are the reference's error."""
    for when in (0, 1, 3):
        found = []
        for wrap in make:
            constant = place(DATA)
            function = wrap(lambda x, c=constant: x + c)
            outcomes = []
            for turn in range(5):
                if turn == when:
                    constant.delete()
                outcomes.append(str(observe(function, place(DATA))[0][:3]))
            found.append(outcomes)
        assert found[0] == found[1]


def test_constants_die_with_the_function():
    """Nothing but the function, and what JAX keeps for it, keeps a constant alive."""
    dead = []
    for jit in (jax.jit, jaxmarshal.jit):
        constant = jax.device_put(DATA)
        function = jit(lambda x, c=constant: x + c)
        for _ in range(3):
            function(jnp.ones(4096))
        reference = weakref.ref(constant)
        del constant, function
        jax.clear_caches()
        gc.collect()
        dead.append(reference() is None)
    assert dead[0] == dead[1]
