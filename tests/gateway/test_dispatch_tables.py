"""The tables of names in docs/: each row holds on the installed JAX."""

from __future__ import annotations

import importlib
import inspect
import re

import jax
import pytest
from support import REPOSITORY

from jaxmarshal import dispatch
from jaxmarshal.compat import dispatch_v0_3

DOCS = REPOSITORY / "docs"


def rows_of(page: str) -> list[list[str]]:
    """The cells of the rows of all tables of a page, heads left out."""
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[0].startswith("`")]


def code(cell: str) -> str:
    """What stands between the first backquotes of a cell."""
    found = re.match(r"`([^`]+)`", cell)
    assert found, cell
    return found[1]


# --- jaxmarshal.dispatch -------------------------------------------------------------------------

CURRENT = {code(row[0]): row[1:] for row in rows_of("dispatch.md")}


def column() -> int:
    """The column of the installed version: that of its minor version, or the last one before."""
    head = re.search(r"\| name \| (.*) \| \|", (DOCS / "dispatch.md").read_text())
    assert head
    versions = [tuple(map(int, text.split("."))) for text in head[1].split(" | ")]
    installed = tuple(map(int, re.findall(r"\d+", jax.__version__)[:4]))
    same = [i for i, version in enumerate(versions) if version[:2] == installed[:2]]
    if same and installed < versions[same[0]]:
        pytest.skip(f"the table has {versions[same[0]]} instead of {installed}")
    return max(i for i, version in enumerate(versions) if version <= installed)


def test_the_current_table_is_complete():
    """As many rows as the module has had names, each once, with a word for every version."""
    assert len(CURRENT) == len(rows_of("dispatch.md")) == 94
    assert all(set(row[:-1]) <= {"yes", "no"} for row in CURRENT.values())
    assert all(row[-1] for row in CURRENT.values() if "no" in row[:-1])


@pytest.mark.parametrize("name", CURRENT)
def test_current_name(name):
    """A name is there or not as the table says, and accelerated where it says so."""
    row = CURRENT[name]
    present = row[column()] == "yes"
    assert hasattr(dispatch, name) == present
    if present:
        original = getattr(importlib.import_module("jax._src.dispatch"), name)
        assert (getattr(dispatch, name) is not original) == (row[-1] == "accelerated")


# --- jaxmarshal.compat.dispatch_v0_3 -------------------------------------------------------------

OLD = {code(row[0]): row[1:] for row in rows_of("dispatch_v0_3.md")}

WORKING = [name for name, row in OLD.items() if row[0] == "works"]
MAPPED = [name for name, row in OLD.items() if row[0] == "maps to"]
GONE = [name for name, row in OLD.items() if row[0] == "gone"]


def found(name: str):
    owner = dispatch_v0_3
    for part in name.split("."):
        owner = inspect.getattr_static(owner, part) if owner is not dispatch_v0_3 else getattr(
            owner, part
        )
    return owner.__func__ if isinstance(owner, staticmethod) else owner


def bare(signature: inspect.Signature) -> str:
    """A signature without annotations."""
    empty = inspect.Parameter.empty
    parameters = [p.replace(annotation=empty) for p in signature.parameters.values()]
    return str(inspect.Signature(parameters))


def test_the_old_table_is_complete():
    """Every public name of the module has a row, and every row one of the three words."""
    assert len(OLD) == len(rows_of("dispatch_v0_3.md"))
    assert sorted([*WORKING, *MAPPED, *GONE]) == sorted(OLD)
    assert set(dispatch_v0_3.__all__) <= set(OLD)
    assert len(WORKING) > 60
    assert len(MAPPED) > 8
    assert len(GONE) == 4
    for cls in (dispatch_v0_3.XlaComputation, dispatch_v0_3.XlaCompiledComputation):
        methods = {f"{cls.__name__}.{name}" for name in vars(cls) if not name.startswith("_")}
        assert methods <= set(OLD)


@pytest.mark.parametrize("name", WORKING)
def test_working_name(name):
    """It is there, and a function with the signature of the table."""
    thing = found(name)
    signature = OLD[name][1]
    assert bool(signature) == (
        inspect.isroutine(thing)
        or hasattr(thing, "__wrapped__")
        or thing in (dispatch_v0_3.XlaComputation, dispatch_v0_3.XlaCompiledComputation)
    )
    if signature:
        assert bare(inspect.signature(thing)) == code(signature)
        assert thing.__doc__ or name.startswith("_")


@pytest.mark.parametrize("name", MAPPED)
def test_mapped_name(name):
    """It is the object that the table names."""
    module, _, attribute = code(OLD[name][1]).rpartition(".")
    assert found(name) is getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("name", GONE)
def test_gone_name(name):
    """It raises an error that names it and what to use; a nonsense name only says so."""
    replacement = re.escape(code(OLD[name][1]))
    with pytest.raises(AttributeError, match=rf"dispatch_v0_3\.{name} is gone: .*{replacement}"):
        getattr(dispatch_v0_3, name)
    with pytest.raises(ImportError, match=name):
        exec(f"from jaxmarshal.compat.dispatch_v0_3 import {name}")
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        dispatch_v0_3.nonsense  # noqa: B018
