"""Whether a call warns is heard while it is recorded; others may meet what listens."""

from __future__ import annotations

import warnings
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eager import hit_by, same, together
from jax import lax
from observe import observe

import jaxmarshal
from jaxmarshal._core.replay import fusion


@pytest.fixture
def real_warn():
    """Which function warns is the same afterwards, whatever a test leaves there."""
    before = warnings.warn
    yield before
    warnings.warn = before


def recorded(act):
    """Runs `act` in a function that is traced while a call of `scan` is recorded."""
    happened = []

    def body(carry, x):
        if x.dtype == jnp.int32:
            happened.append(act())
        return carry + x, x

    for _ in range(2):
        lax.scan(body, 0.0, jnp.arange(3.0))
    for _ in range(3):
        lax.scan(body, 0.0, jnp.arange(3))    # traced now, for these types
    assert len(happened) == 1
    for _ in range(5):
        lax.scan(body, 0.0, jnp.arange(4.0))
    return happened[0]


def warned(call=lambda: warnings.warn("hello", stacklevel=1)):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [(str(item.message), item.filename) for item in found]


def test_a_wrapper_that_stays(real_warn):
    """A library wraps `warnings.warn` when it is imported, which may be while a body is traced."""
    expected = warned(), warned(lambda: jnp.arange(3).astype("int64"))

    def wrap():
        before = warnings.warn
        warnings.warn = lambda *args, **kwargs: before(*args, **kwargs)

    with jaxmarshal.installed():
        recorded(wrap)
        assert warnings.warn is not real_warn
        assert [text for text, _ in warned()] == [text for text, _ in expected[0]]
        found = warned(lambda: jnp.arange(3).astype("int64"))
        assert [text for text, _ in found] == [text for text, _ in expected[1]]


def test_a_mock_that_ends_later(real_warn):
    """A mock that was put there meanwhile puts back what it found, when nobody listens any more."""
    patch = mock.patch("warnings.warn")
    with jaxmarshal.installed():
        recorded(patch.start)
        patch.stop()
        assert warned() == [("hello", __file__)]
        assert warnings.warn is real_warn
        recorded(patch.start)
        patch.stop()
        recorded(lambda: None)
        assert warnings.warn is real_warn


def test_a_function_that_is_kept(real_warn):
    """Whoever took the function meanwhile warns by it for good."""
    with jaxmarshal.installed():
        kept = recorded(lambda: warnings.warn)
        assert kept is not real_warn
        for _ in range(3):
            assert warned(lambda: kept("hello", stacklevel=1)) == [("hello", __file__)]
        assert kept.__name__ == real_warn.__name__
        assert warnings.warn is real_warn


class Deadline(Exception):
    """What a signal handler raises."""


def test_trap_10_an_error_in_the_middle_of_a_replay():
    """Trap 10: what code of the program raises there is its own, and no reason to start again."""
    x = jnp.arange(6.0)

    def call():
        return x[::2] * 2 + x[1]

    def fail(*args):
        raise Deadline

    with (
        jaxmarshal.installed(), mock.patch.object(fusion, "offer", fail), pytest.raises(Deadline)
    ):  # fmt: skip
        for _ in range(200):
            call()
    assert call().shape == (3,)


DERIVED = {
    "fftfreq": lambda: jnp.fft.fftfreq(8, 1e38),
    "rfftfreq": lambda: jnp.fft.rfftfreq(8, -1e38),
    "half": lambda: jnp.fft.fftfreq(8, 9000.0, dtype=jnp.float16),
}


@pytest.mark.parametrize("name", DERIVED)
def test_trap_20_numbers_that_are_computed_on_the_host(name):
    """Trap 20: `n * d` is too large, and `d` is not: numpy warns each time, or raises."""
    call = DERIVED[name]
    expected = warned(call)
    assert expected
    with jaxmarshal.installed():
        for _ in range(10):
            assert warned(call) == expected
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            call()
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        call()


def test_ordinary_numbers_beside_infinity():
    """They are none that a product of them could be."""
    positive = jnp.arange(3) > 0

    def call():
        return jnp.where(positive, 2.0, jnp.inf)

    with jaxmarshal.installed():
        for _ in range(8):
            call()
        before = jaxmarshal.stats()["functions"]["hits"]
        call()
        assert jaxmarshal.stats()["functions"]["hits"] > before


# --- Numbers that some dtype on the way cannot hold -----------------------------------------------

NUMBERS = [-jnp.inf, jnp.nan, 1e10, -1.5, 1e39, 1e300, -0.0, 300, 2**31, 2**40, 1 - 2j]
OPERANDS = ["float32", "bfloat16", "float16", "int32", "uint8", "bool", "complex64"]
INDICES = {
    "int": 1, "slice": slice(1, 3), "of ints": jnp.array([0, 2]),
    "of bytes": jnp.array([0, 2], jnp.uint8), "two": (jnp.array([0, 1]), jnp.array(1)),
    "of numpy": (np.array([0, 1], np.int32), 1),
}


def updates(x, index, number):
    """Calls that convert a number to the dtype of the array that is indexed, and to no other."""
    for name in ("set", "add", "max", "mul"):
        yield lambda name=name: getattr(x.at[index], name)(number)
    yield lambda: x.at[index].get(mode="fill", fill_value=number)


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("operand", OPERANDS)
def test_numbers_beside_an_index(operand, index):
    """Each call warns and fails as with JAX, whatever `np.errstate` says by then."""
    x = jax.device_put(np.ones((4, 3))).astype(operand)
    calls = [call for number in NUMBERS for call in updates(x, INDICES[index], number)]
    for call in calls:
        observe(call)    # JAX says some things once, when it traces
    with jaxmarshal.installed(), together():
        for call in calls:
            same(call, turns=4)
            same(call, turns=2, context=lambda: np.errstate(all="raise"))


def test_numbers_beside_an_index_are_hit():
    x = jnp.ones((4, 3))
    for number in (-jnp.inf, jnp.nan, -1e30):
        for index in INDICES.values():
            for call in updates(x, index, number):
                with jaxmarshal.installed():
                    hit_by("functions", call)


@pytest.mark.parametrize("kind", ["key", "PRNGKey"])
def test_numbers_beside_a_key(kind):
    """A key consists of unsigned ints, but nothing that is given beside it is made one."""
    key = getattr(jax.random, kind)(0)
    with jaxmarshal.installed():
        for call in (
            lambda: jax.random.uniform(key, (3,), minval=-1.0, maxval=1.0),
            lambda: jax.random.truncated_normal(key, -2.0, 2.0, (3,)),
            lambda: jax.random.uniform(key, (2,), minval=-1e10, maxval=jnp.inf),
        ):
            hit_by("functions", call)
            same(call, context=lambda: np.errstate(all="raise"))
        for number in (-1.0, 1e10, jnp.nan, 2**40, -5):
            for call in (
                lambda number=number: jax.random.fold_in(key, number),
                lambda number=number: jax.random.randint(key, (3,), number, 7, "uint8"),
                lambda number=number: jax.random.uniform(key, (3,), "float16", minval=number),
                lambda number=number: jax.random.bernoulli(key, number),
            ):
                same(call, turns=4)
                same(call, turns=2, context=lambda: np.errstate(all="raise"))
