"""Trap 22: calls of public functions that come in turns, or never again.

Exact numbers of hits: a limit is no cliff, what falls out comes back, and what comes once is not
kept.
"""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmarshal


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed():
        yield


def hits_in(rounds, calls, entry):
    """The hits of each round of the same calls."""
    found = []
    for _ in range(rounds):
        before = jaxmarshal.stats()[entry]["hits"]
        for call in calls:
            call()
        found.append(jaxmarshal.stats()[entry]["hits"] - before)
    return found


def kept(kind):
    """How many objects of a class of the engine there are."""
    gc.collect()
    return sum(type(x).__name__ == kind for x in gc.get_objects())


def indexing(count):
    """Slices from the back: other indices have one recording for all (`test_index.py`)."""
    x = jax.device_put(np.arange(count + 1, dtype=np.float32))
    return [lambda i=i: x[i - count - 1 : i - count] for i in range(count)]


@pytest.mark.parametrize("count", [300, pytest.param(1500, marks=pytest.mark.slow),
                                   pytest.param(3000, marks=pytest.mark.slow)])
def test_indices_in_turns(count):
    """Most calls are left to JAX until one comes again; then each is looked at, and kept."""
    found = hits_in(5, indexing(count), "getitem")
    assert found[:2] == [0, 0]
    assert found[4] >= found[3] >= 0.99 * count    # a few hashes may have given way to others
    assert [float(call()[0]) for call in indexing(count)[::37]] == list(range(0, count, 37))


@pytest.mark.slow
def test_more_indices_than_are_kept():
    """Those that found room keep it: none pushes out another that is used."""
    calls = indexing(5000)
    hits_in(3, calls, "getitem")
    first, *others = hits_in(4, calls, "getitem")
    assert first > 4000
    assert others == [first] * 3
    assert kept("Replay") <= 4096


def shaped(count):
    xs = [jax.device_put(np.zeros(n, np.float32)) for n in range(1, count + 1)]
    return [lambda x=x: jnp.zeros_like(x) for x in xs]


@pytest.mark.parametrize("count", [16, 17, 150])
def test_shapes_in_turns(count):
    """As many kinds of arrays as one likes, under one key."""
    found = hits_in(6, shaped(count), "functions")
    assert found[-1] == count


def test_equal_avals_that_are_not_the_same():
    """Among many kinds of arrays they are found by what they are, and not as objects."""
    hits_in(6, shaped(40), "functions")
    again = shaped(40)
    assert hits_in(2, again, "functions") == [40, 40]
    committed = jax.device_put(np.zeros(3, np.float32), jax.devices()[1])
    for _ in range(3):
        result = jnp.zeros_like(committed)
        assert result.devices() == {jax.devices()[1]} and result.committed
    jax.block_until_ready(result)


def test_what_comes_once_is_not_kept():
    """Thousands of calls that never come again leave nothing, and the one that stays is fast."""
    x = jax.device_put(np.arange(4, dtype=np.float32))
    before = kept("Replay"), kept("Play")
    for n in range(3000):
        jnp.linspace(0.0, n + 1.0, 2)
    assert (kept("Replay"), kept("Play")) == before
    assert jaxmarshal.stats()["functions"]["hits"] == 0
    calls = [lambda: x.at[0].set(5.0)] * 3
    hits_in(1, calls, "functions")
    assert hits_in(1, calls, "functions") == [3]


def test_one_call_among_many_that_never_come_again():
    """A loop of a hundred and four calls, of which one is the same each time, at any place."""
    x = jax.device_put(np.arange(104 * 40, dtype=np.float32))
    n = iter(range(1, 104 * 40))
    rounds = []
    for _ in range(36):
        before = jaxmarshal.stats()["getitem"]["hits"]
        assert np.asarray(x[:1]) == 0.0
        for _ in range(103):
            k = next(n)
            x[-k - 1 : -k]
        rounds.append(jaxmarshal.stats()["getitem"]["hits"] - before)
    assert sum(rounds) > 0
    assert all(hits <= 1 for hits in rounds)


def calls_until_a_hit(call, most):
    for count in range(most):
        before = jaxmarshal.stats()["functions"]["hits"]
        call()
        if jaxmarshal.stats()["functions"]["hits"] > before:
            return count
    return most


def test_more_calls_are_left_after_more_that_never_come_again():
    """After 7500 calls, of which 560 were looked at, one in 31 is, and none is left for good."""
    counts = []
    for n in range(1, 4):
        for end in range(7500):
            jnp.linspace(0.0, n + end / 8192, 2)
        counts.append(calls_until_a_hit(lambda n=n: jnp.linspace(n, 0.0, 2), 1000))
    assert sum(counts) > 130    # one in nine would come to 36 at most, each time
    assert max(counts) < 1000


@pytest.mark.slow
def test_what_is_not_used_any_more_gives_way():
    """A second set of calls finds room that the first one had."""
    first, second = indexing(4200), shaped(1)
    hits_in(4, first, "getitem")
    assert kept("Replay") <= 4096
    rounds = 0
    while hits_in(1, second * 5000, "functions") != [5000]:
        rounds += 1
        assert rounds < 40
    assert rounds > 1    # there was none at first
