"""Operations outside of `jit`: arrays that are not what they seem, and the places of warnings."""

from __future__ import annotations

import copy
import warnings
from operator import getitem

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eager import X, hit_by, same
from jax import lax
from support import JAX, deleted_array, without_jaxmarshal

import jaxmarshal


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed():
        yield


def made_by_new():
    return type(jnp.zeros(1)).__new__(type(jnp.zeros(1)))


def donated():
    x = jnp.asarray(X)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    return x


def half_copied():
    """Made by `__new__`, with the attributes that Python keeps."""
    x = made_by_new()
    x._npy_value = None
    return x


USES = {
    "x[0]": lambda x: getitem(x, 0), "x[1:3]": lambda x: getitem(x, slice(1, 3)),
    "x[...]": lambda x: getitem(x, ...), "neg": lax.neg, "neg_p": lambda x: lax.neg_p.bind(x),
    "add": lambda x: lax.add(x, jnp.asarray(X)), "sum": lambda x: lax.reduce_sum(x, (0,)),
    "add host data": lambda x: lax.add(x, X), "full": lambda x: jnp.full(8, x),
    "convert": lambda x: lax.convert_element_type(x, np.int32),
    "asarray": jnp.asarray, "array": jnp.array, "zeros": lambda x: jnp.zeros(x),
    "dtype": lambda x: jnp.zeros(3, x),
    "len": len, "iter": lambda x: list(x), "int": lambda x: getitem(x, 0).item(),
}  # fmt: skip
if hasattr(lax, "stage_p"):
    USES["stage"] = lax.stage_p.bind



@pytest.mark.errors
@pytest.mark.parametrize("make", [
    pytest.param(made_by_new, marks=pytest.mark.skipif(JAX < (0, 9), reason="JAX 0.8 crashes")),
    half_copied, deleted_array, donated,
])  # fmt: skip
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_trap_19_empty_arrays(use, make):
    """Trap 19: an array that was never filled, or is gone, gives the reference's error."""
    for _ in range(4):
        try:
            use(jnp.asarray(X))
        except (TypeError, ValueError):
            break
    same(lambda: use(make()))


def caught(call):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [(w.filename, w.lineno, w.category, str(w.message)) for w in found]


def printed_once(call):
    """What the default filters let through in four calls from one place."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(4):
            call()
    return [(w.filename, w.lineno) for w in found]


LARGE = np.array([1e300])
WARNING = {
    "neg": lambda: lax.neg(LARGE), "neg of a scalar": lambda: lax.neg(np.float64(1e300)),
    "add": lambda: lax.add(LARGE, np.array([1.0])), "complex": lambda: lax.neg(LARGE * 1j),
    "add an array": lambda: lax.add(jnp.zeros(1), LARGE),
    "asarray": lambda: jnp.asarray(LARGE),
    "array": lambda: jnp.array(np.float64(1e300)), "nan": lambda: lax.neg(LARGE * np.nan),
    "full": lambda: jnp.full(2, 1e300, np.float32),
    "full of a scalar": lambda: jnp.full(2, np.float64(1e300)),
    "full of data": lambda: jnp.full(1, LARGE), "small": lambda: lax.neg(np.array([1e-300])),
    "zeros": lambda: jnp.zeros(3, np.float64), "ones": lambda: jnp.ones(3, "float64"),
    "full f64": lambda: jnp.full(3, 1.0, np.float64),
    "many": lambda: lax.neg(np.full(20000, 1e300)),
    "strides": lambda: lax.neg(np.full(20, 1e300)[::2]),
}  # fmt: skip
if hasattr(lax, "stage_p"):
    WARNING["stage"] = lambda: lax.stage_p.bind(LARGE)


@pytest.mark.parametrize("call", WARNING.values(), ids=WARNING)
@pytest.mark.parametrize("kind", ["always", "raise", "errstate"])
def test_trap_20_places_of_warnings(call, kind):
    """Trap 20: warnings name the file and the line that they name in JAX, as often."""
    for warm in (lambda: lax.neg(np.ones(1)), lambda: lax.neg(np.float64(1)),
                 lambda: jnp.asarray(np.ones(1)), lambda: lax.neg(np.ones(20000)),
                 lambda: lax.add(jnp.zeros(1), np.ones(1)),
                 lambda: lax.neg(np.ones(10))):  # fmt: skip
        for _ in range(3):
            warm()

    def found():
        if kind == "always":
            return [caught(call) for _ in range(4)]
        with np.errstate(all="ignore" if kind == "errstate" else "raise"):
            try:
                return [caught(call) for _ in range(4)]
            except FloatingPointError as error:
                return str(error)

    jax.clear_caches()    # some versions warn while they compile
    here = found()
    with without_jaxmarshal():
        jax.clear_caches()
        assert here == found()
        once = printed_once(call)
    assert printed_once(call) == once


def test_host_data_that_cannot_warn_hit():
    """Data of 64 bits whose conversion is silent take the fast path."""
    hit_by("bind", lax.neg, np.ones(3))
    hit_by("bind", lax.neg, np.float64(2))
    with jax.enable_x64(True):
        for _ in range(3):
            lax.neg(LARGE)
        before = copy.copy(jaxmarshal.stats()["bind"]["hits"])
        lax.neg(LARGE)
        assert jaxmarshal.stats()["bind"]["hits"] == before + 1
