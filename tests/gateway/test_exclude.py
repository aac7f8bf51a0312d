"""Leaving one function out, and leaving everything out for a while."""

from __future__ import annotations

import gc
import threading

import jax
import jax.numpy as jnp
import pytest
from conftest import LAYOUT_OFF

import jaxmarshal
from jaxmarshal._core.entries import jit
from jaxmarshal._jax import patching


def hits(name="jit"):
    return jaxmarshal.stats()[name]["hits"]


def misses(name="jit"):
    return jaxmarshal.stats()[name]["misses"]


def call(f, times=5):
    """Call with the same array; whether all results are right, and the calls that were counted."""
    x = jnp.ones(3)
    f(x)    # traced: what is called inside has counts, too
    jaxmarshal.reset_stats()
    results = [f(x) for _ in range(times)]
    counted = hits() + misses()
    assert all(result.tolist() == [2, 2, 2] for result in results)
    return counted


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_excluded_function_is_jaxs(when):
    """Its calls are not even looked at; another function of the same Python function is."""

    def add(x):
        return x + 1

    excluded, other = jax.jit(add), jax.jit(add)
    if when == "before":
        assert jaxmarshal.exclude(excluded) is excluded
    with jaxmarshal.installed():
        if when == "after":
            assert call(excluded) == 5
            jaxmarshal.exclude(excluded)
        assert call(excluded) == 0
        assert not jit.uses_plans(excluded)
        assert call(other) == 5
        if not LAYOUT_OFF:
            assert hits() == 4    # jaxlib knows the call: it takes two to record
    with jaxmarshal.installed():
        assert call(excluded) == 0


def test_as_a_decorator():
    """Above `jax.jit`, for functions and methods."""
    with jaxmarshal.installed():

        @jaxmarshal.exclude
        @jax.jit
        def add(x):
            return x + 1

        class Model:
            @jaxmarshal.exclude
            @jax.jit
            def __call__(self, x):
                return x + 1

            @jax.jit
            def add(self, x):
                return x + 1

        jax.tree_util.register_static(Model)
        model = Model()
        assert call(add) == call(model) == 0
        assert call(model.add) == 5
        jaxmarshal.exclude(model.add)
        assert call(model.add) == 0


def test_a_function_of_jaxmarshals_own():
    """`jaxmarshal.jit` makes functions that can be excluded, too."""
    add = jaxmarshal.jit(lambda x: x + 1)
    assert call(add) == 5
    jaxmarshal.exclude(add)
    assert call(add) == 0
    assert add.lower(jnp.ones(3)).compile()(jnp.ones(3)).tolist() == [2, 2, 2]


def test_it_does_not_keep_the_function():
    """What is excluded dies as before, and its address means nothing afterwards."""
    import weakref

    add = jaxmarshal.exclude(jax.jit(lambda x: x + 1))
    gone = weakref.ref(add)
    del add
    gc.collect()
    assert gone() is None
    with jaxmarshal.installed():
        for _ in range(50):
            assert jit.uses_plans(jax.jit(lambda x: x + 1))


@pytest.mark.parametrize("wrong", [lambda x: x, 3, jax.device_put, None])
def test_what_cannot_be_excluded(wrong):
    """A clear error that names the type and the order of decorators."""
    with pytest.raises(TypeError, match=rf"not {type(wrong).__name__}.*above @jax.jit"):
        jaxmarshal.exclude(wrong)


# --- `uninstalled()` ------------------------------------------------------------------------------


def test_uninstalled():
    """Inside JAX is as it came, outside it is as before."""
    jaxmarshal.install(only=["device_put", "bind"])
    before = jax.device_put
    with jaxmarshal.uninstalled():
        assert patching.installed_names() == frozenset()
        assert jax.device_put is not before
        jax.device_put(1.0)
        assert misses("device_put") == hits("device_put") == 0
    assert jax.device_put is before
    assert patching.installed_names() == {"device_put", "bind"}


def test_uninstalled_where_nothing_is_installed():
    """It does nothing, before and after."""
    with jaxmarshal.uninstalled():
        assert patching.installed_names() == frozenset()
    assert patching.installed_names() == frozenset()


def test_uninstalled_and_other_contexts():
    """The last context that was opened decides; an error changes nothing of that."""
    with jaxmarshal.installed("device_put"):
        with pytest.raises(KeyError), jaxmarshal.uninstalled():
            with jaxmarshal.installed("bind"):
                assert patching.installed_names() == {"bind"}
                with jaxmarshal.uninstalled():
                    assert patching.installed_names() == frozenset()
                assert patching.installed_names() == {"bind"}
            assert patching.installed_names() == frozenset()
            raise KeyError
        assert patching.installed_names() == {"device_put"}
    assert patching.installed_names() == frozenset()


def test_installing_inside():
    """`install()` inside takes effect on leaving, `uninstall()` at once."""
    with jaxmarshal.uninstalled():
        jaxmarshal.install("bind")
        assert patching.installed_names() == frozenset()
    assert patching.installed_names() == {"bind"}
    with jaxmarshal.uninstalled():
        jaxmarshal.uninstall()
    assert patching.installed_names() == frozenset()


def test_uninstalled_is_for_all_threads():
    """Another thread sees JAX as it came, and its own context still counts."""
    jaxmarshal.install("bind")
    inside, leave = threading.Event(), threading.Event()

    def other():
        with jaxmarshal.uninstalled():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    assert patching.installed_names() == frozenset()
    with jaxmarshal.uninstalled():
        pass
    assert patching.installed_names() == frozenset()
    leave.set()
    thread.join()
    assert patching.installed_names() == {"bind"}
