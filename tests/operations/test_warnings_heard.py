"""Whether a call warns is heard while it is recorded; others may meet what listens."""

from __future__ import annotations

import warnings
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

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
