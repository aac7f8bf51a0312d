"""`explain` names the first obstacle, its argument and the word that differs, and runs nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmarshal


def test_device_put_before_and_after_recording():
    """A call that nothing was recorded for, and the same call afterwards."""
    x = {"a": np.zeros(3, np.float32), "b": [jnp.ones(2), np.ones(5, np.float32)]}
    before = jaxmarshal.explain(jaxmarshal.device_put, x)
    assert (before.hit, before.reason, before.leaf) == (False, "not_recorded", "x['a']")
    jaxmarshal.device_put(x)
    after = jaxmarshal.explain(jax.device_put, x)
    assert after.hit and str(after) == "device_put: a hit."
    x["b"][1] = np.ones(6, np.float32)
    assert jaxmarshal.explain(jax.device_put, x).leaf == "x['b'][1]"
    assert jaxmarshal.stats()["device_put"]["misses"] == 1


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda explain: explain(jax.device_put, "text"), "unknown_type"),
        (lambda explain: explain(jax.device_put, 1.0, may_alias=False), "options"),
        (lambda explain: explain(jax.device_put, 1.0, "cpu"), "target"),
        (lambda explain: explain(jax.device_put, [1.0], [None, None]), "tree"),
        (lambda explain: explain(jax.device_put, jax.random.key(0)), "key_array"),
        (lambda explain: explain(len, [1]), "unknown_function"),
    ],
)
def test_device_put_reasons(call, reason):
    """Each obstacle has its reason, a meaning and an advice."""
    answer = call(jaxmarshal.explain)
    assert (answer.hit, answer.reason) == (False, reason)
    assert answer.meaning and answer.advice
    assert reason in str(answer) or answer.entry_point is None


def test_compiled_words():
    """A miss of a compiled call names the leaf, the recorded word and the found one."""
    tree = {"w": jnp.ones((2, 3)), "b": [jnp.ones(3)]}
    scale = jnp.ones(())
    compiled = jax.jit(lambda t, s: t["w"] * s).lower(tree, s=scale).compile()
    assert jaxmarshal.explain(compiled, tree, s=scale).reason == "not_recorded"
    with jaxmarshal.installed():
        compiled(tree, s=scale)
    assert jaxmarshal.explain(compiled, tree, s=scale).hit
    tree["b"][0] = jax.device_put(jnp.ones(3), jax.devices()[0])
    answer = jaxmarshal.explain(compiled, tree, s=scale)
    assert (answer.reason, answer.leaf) == ("committed", "args[0]['b'][0]")
    assert (answer.recorded, answer.found) == (False, True)
    tree["b"][0] = jnp.ones(4)
    answer = jaxmarshal.explain(compiled, tree, s=scale)
    assert (answer.reason, answer.leaf) == ("aval", "args[0]['b'][0]")
    assert "float32[3]" in str(answer) and "float32[4]" in str(answer)
    assert jaxmarshal.explain(compiled, [tree], s=scale).reason == "tree"


def test_wrong_arguments():
    """The signature of device_put holds here too."""
    with pytest.raises(TypeError):
        jaxmarshal.explain(jax.device_put, 1.0, None, None)
