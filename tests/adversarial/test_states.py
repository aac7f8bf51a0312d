"""Each state of the configuration, by name, changes under warm caches of every entry point."""

from __future__ import annotations

import os

import jax
import pytest
import states
from changes import changes_of_context, changes_of_state
from entries import ENTRIES, Entry
from harness import Change, compare, report
from old_dispatch import devices

#: So many states share warm caches.
AT_ONCE = 12


def test_each_state_is_named():
    """A state that the installed JAX has is in one of the tables, and in one alone."""
    tables = [set(states.VALUES), set(states.CONTEXTS), set(states.IRRELEVANT)]
    named = set.union(*tables)
    assert sum(map(len, tables)) == len(named)
    assert not states.known_names() - named, "name what is new in JAX in states.py"


#: What JAX has while tests are collected: some tests leave "allow" where nothing was set.
AT_FIRST = {
    name: {**states.all_states(), **jax.config._value_holders}[name].value
    for name in set(states.VALUES) & states.known_names()
}


def test_values_are_others():
    """No value of the table is what JAX has already."""
    assert len(AT_FIRST) > 50
    for name, value in AT_FIRST.items():
        assert value not in states.values(name), name


@pytest.mark.slow
def test_each_state_is_found(fresh):
    """Nothing is missed because it is made when some module of JAX is imported."""
    found = fresh(ALL_MODULES)
    assert found["modules"] > 400
    assert set(found["names"]) <= {*states.VALUES, *states.CONTEXTS, *states.IRRELEVANT}


ALL_MODULES = """
import gc, importlib, pkgutil, contextlib, io, sys, warnings
import jax
sys.modules["jax._src.test_util"] = None    # its options are those of JAX's own tests
from jax._src import config
warnings.simplefilter("ignore")
modules = 0
for info in pkgutil.walk_packages(jax.__path__, "jax.", onerror=lambda name: None):
    if any(part in info.name for part in ("test", "tools", "__main__", "jax2tf", "mosaic_gpu")):
        continue
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module(info.name)
    except Exception:
        continue
    modules += 1
base = config.config_ext.Config
names = {x.name for x in gc.get_objects() if isinstance(x, base)} | set(jax.config._value_holders)
result = {"modules": modules, "names": sorted(names)}
"""


def changes_of(name: str) -> list[Change]:
    return changes_of_state(name) if name in states.VALUES else changes_of_context(name)


def check(names: list[str], entries: list[Entry]) -> None:
    assert len(devices()) == 8
    changes = [change for name in names for change in changes_of(name)]
    differences = compare(entries, changes, deep=False)
    assert not differences, "\n" + report(differences)


NAMES = sorted({*states.VALUES, *states.CONTEXTS})
PARTS = [NAMES[i : i + AT_ONCE] for i in range(0, len(NAMES), AT_ONCE)]
#: Each part of the states meets every so many of the entries; with JAXMARSHAL_ALL_STATES=1 all.
EVERY = 1 if os.environ.get("JAXMARSHAL_ALL_STATES") else 5


@pytest.mark.slow
@pytest.mark.one_version
@pytest.mark.parametrize("part", range(len(PARTS)), ids=lambda i: f"{PARTS[i][0]}..{PARTS[i][-1]}")
def test_states(part):
    """All states, some with the same warm caches."""
    check(PARTS[part], list(ENTRIES.values())[part % EVERY :: EVERY])
