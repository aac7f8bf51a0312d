"""Functions of modules that JAX imports when a program asks for them: `jax.scipy`."""

from __future__ import annotations

import importlib
import sys
from textwrap import dedent
from types import FunctionType
from unittest import mock

import jax.numpy as jnp
import jax.scipy.special
import jax.scipy.stats
import numpy as np
import pytest
from child import run_code
from eager import hit_by, hits, same
from jax._src.scipy import special
from support import without_jaxmarshal

import jaxmarshal
from jaxmarshal._core.entries import which_functions
from jaxmarshal._jax import patching


@pytest.fixture(autouse=True)
def installed():
    with jaxmarshal.installed():
        yield


#: The last calls of a kind hit; the module comes in before or after jaxmarshal is installed, or
#: while it is not.
COUNT = """
    import jaxmarshal
    import jax.numpy as jnp

    def hits_of(pdf):
        x = jnp.arange(4.0)
        for _ in range(9):
            before = jaxmarshal.stats()["functions"]["hits"]
            pdf(x)
        return jaxmarshal.stats()["functions"]["hits"] - before
"""
ORDERS = {
    "imported first": """
        import jax.scipy.stats
        jaxmarshal.install()
        print(hits_of(jax.scipy.stats.norm.logpdf))
    """,
    "installed first": """
        jaxmarshal.install()
        from jax.scipy.stats import norm
        print(hits_of(norm.logpdf))
    """,
    "found by name": """
        jaxmarshal.install()
        import jax
        print(hits_of(jax.scipy.stats.norm.logpdf))
    """,
    "imported while it is not installed": """
        jaxmarshal.install()
        jaxmarshal.uninstall()
        import jax.scipy.stats
        jaxmarshal.install()
        print(hits_of(jax.scipy.stats.norm.logpdf))
    """,
    "installed again before the import": """
        jaxmarshal.install()
        jaxmarshal.uninstall()
        jaxmarshal.install()
        import jax.scipy.stats
        print(hits_of(jax.scipy.stats.norm.logpdf))
    """,
    "installed in the middle of the import": """
        import sys

        class Middle:
            def find_spec(self, name, *rest):
                if name == "jax.scipy.stats.norm":
                    sys.meta_path.remove(self)
                    jaxmarshal.install()

        sys.meta_path.insert(0, Middle())
        import jax.scipy.stats
        print(hits_of(jax.scipy.stats.norm.logpdf))
    """,
}


@pytest.mark.parametrize("order", ORDERS)
def test_replayed_whenever_the_module_comes_in(order):
    assert run_code(dedent(COUNT) + dedent(ORDERS[order])).stdout.split() == ["1"]


def test_nothing_stays_after_uninstalling():
    """Neither replacements nor what waits for an import."""
    done = run_code("""
        import sys
        import jaxmarshal

        before = list(sys.meta_path)
        jaxmarshal.install()
        import jax.scipy.stats
        replaced = jax.scipy.stats.norm.logpdf
        jaxmarshal.uninstall()
        import jax.scipy.signal
        import jax._src.scipy.stats.norm as own
        found = jax.scipy.stats.norm.logpdf
        print(sys.meta_path == before, replaced is own.logpdf, found is own.logpdf)
    """)
    assert done.stdout.split() == ["True", "False", "True"]


def test_jax_scipy_is_not_imported():
    done = run_code("""
        import sys
        import jaxmarshal

        jaxmarshal.install()
        print([name for name in sys.modules if name.startswith("jax._src.scipy")])
    """)
    assert done.stdout.strip() == "[]"


def test_every_module_has_functions_of_its_own():
    """A module that JAX renames would be missed by nobody else."""
    (entry,) = (entry for entry in patching.ENTRY_POINTS if entry.name == "functions")
    for name in which_functions.LATE_MODULES:
        module = importlib.import_module(name)
        with jaxmarshal.uninstalled():
            pairs = which_functions._late_names(name)
            found = [getattr(sys.modules[where], each) for where, names in pairs for each in names]
        replaced = {id(place.original) for place in entry.places}
        own = [
            function for function in found
            if type(function) is FunctionType and function.__module__.startswith("jax._src.scipy")
        ]
        assert len(own) >= 4, module
        assert all(id(function) in replaced for function in own), module


CALLS = {
    "of several steps": lambda x: jax.scipy.stats.norm.logpdf(x, 0.5, 2.0),
    "with a derivative of its own": lambda x: jax.scipy.special.xlogy(x, x),
    "of two results": lambda x: jax.scipy.special.sici(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_hits(name):
    call = CALLS[name]
    for seed in (0, 9):
        hit_by("functions", call, jnp.arange(4.0) + seed)
    same(call, jnp.array([0.0, -0.0, jnp.nan, jnp.inf]))
    same(call, jnp.arange(4))
    same(call, np.arange(4.0, dtype=np.float32))


GAMMA = importlib.import_module("jax._src.scipy.stats.gamma")
#: A call, and where a program replaces which function that it goes through.
REPLACED = {
    "of jax.lax": (lambda x: jax.scipy.special.gammaln(x), special.lax, "lgamma"),
    "of the module's own": (lambda x: jax.scipy.stats.gamma.logpdf(x, 2.0), GAMMA, "gammaln"),
}


@pytest.mark.parametrize("name", REPLACED)
def test_trap_15_replaced(name):
    """A function of `jax._src.scipy` that a program replaces is called, before and afterwards."""
    call, where, attribute = REPLACED[name]
    x = jnp.arange(1.0, 5.0)
    plain = np.asarray(call(x))
    for _ in range(6):
        call(x)
    before = hits("functions")
    call(x)
    assert hits("functions") > before
    for _ in range(2):
        with mock.patch.object(where, attribute, lambda *args: jnp.float32(100.0)):
            changed = [np.asarray(call(x)) for _ in range(6)]
            with without_jaxmarshal():
                expected = np.asarray(call(x))
        assert all(np.array_equal(each, expected) for each in changed)
        assert not np.array_equal(plain, expected)
        assert np.array_equal(call(x), plain)
