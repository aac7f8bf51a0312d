"""The tables are complete: every entry point is called, every way to be replaced is tried."""

from __future__ import annotations

import contextlib
import functools
from typing import Any
from unittest import mock

import jax
import pytest
from changes import FUNCTIONS, HANDLERS, LEFT_TO_JAX, MOVED, PRIMITIVES
from entries import ABSENT, ENTRIES
from jax._src import core, dispatch

import jaxmarshal
from jaxmarshal import fronts
from jaxmarshal._jax import patching
from jaxmarshal.fronts import filtered


def called() -> set[str]:
    """The names in `stats()` that some entry has to be fast under."""
    found: set[str] = set()
    for entry in ENTRIES.values():
        early = entry.early()
        with jaxmarshal.installed():
            found.update(entry.make(early).hits)
    return found


def test_each_entry_point_is_called():
    """Those of JAX, those of libraries that are there, and jaxmarshal's own."""
    known = {entry.name for entry in patching.ENTRY_POINTS if entry.active}
    known |= {front.name for front in fronts.FRONTS} - set(ABSENT)
    assert known | {filtered.NAME} <= called()


@pytest.mark.parametrize("name", [front.name for front in fronts.FRONTS])
def test_fronts_are_there(name):
    """Says aloud which library is not there, so that its entry was left out."""
    if name in ABSENT:
        pytest.skip(f"NOT DONE: {name}: {ABSENT[name]}")
    assert name in ENTRIES


def test_each_handler_is_replaced():
    """Each function in JAX's tables of handlers is replaced for one type at least."""
    tables = {name: table for name, table, _ in HANDLERS}
    left = set()
    for name, table in tables.items():
        tried = {id(table[kind]) for other, _, kind in HANDLERS if other == name and kind in table}
        left |= {kind.__name__ for kind in table if id(table[kind]) not in tried}
    assert left <= set(LEFT_TO_JAX)
    assert all(LEFT_TO_JAX.values())


def test_each_function_that_is_replaced_is_there():
    """A name that is gone from the installed JAX is known to be."""
    gone = {name for holder, name in FUNCTIONS if not hasattr(holder, name)}
    assert gone <= set(MOVED)


def is_implemented_as_most(primitive: Any) -> bool:
    """Is it run by the function that runs most of them, and bound as most are?"""
    own = vars(primitive)
    implementation = own.get("impl")
    return (
        "bind_with_trace" not in own
        and type(implementation) is functools.partial
        and implementation.func is dispatch.apply_primitive
    )


@pytest.mark.slow
def test_each_primitive_is_replaced():
    """Each that an entry binds in plain JAX and that is not run as most of them are."""
    bound: dict[str, Any] = {}
    plain = core.Primitive.bind

    def bind(self: Any, *args: Any, **params: Any) -> Any:
        bound[self.name] = self
        return plain(self, *args, **params)

    with mock.patch.object(core.Primitive, "bind", bind):
        for entry in ENTRIES.values():
            for call in entry.make(entry.early()).calls:
                with contextlib.suppress(Exception):
                    call.function(*call.make(), **call.kwargs())
    jax.clear_caches()
    odd = {name for name, primitive in bound.items() if not is_implemented_as_most(primitive)}
    assert len(bound) > 20
    assert odd <= {primitive.name for primitive in PRIMITIVES.values()}
