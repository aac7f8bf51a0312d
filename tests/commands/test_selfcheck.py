"""`doctor --check`: it passes here, covers everything, and fails where something is wrong."""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
import time

import jax
import numpy as np
import pytest
from child import run
from jax.experimental.layout import Format

import jaxmarshal
from jaxmarshal import selfcheck
from jaxmarshal.__main__ import main
from jaxmarshal._jax import patching, private
from jaxmarshal.selfcheck import runner
from jaxmarshal.selfcheck.registry import check
from jaxmarshal.selfcheck.traps import TRAPS

pytestmark = [pytest.mark.slow, pytest.mark.commands]

ENTRIES = {entry.name: entry for entry in patching.ENTRY_POINTS}


@pytest.fixture
def sabotage(monkeypatch):
    """Let an entry point's accelerated function be another."""

    def replace(name, function):
        damaged = dataclasses.replace(ENTRIES[name])
        object.__setattr__(damaged, "accelerated", function)    # as it is, without its signature
        entries = tuple(
            damaged if entry.name == name else entry for entry in patching.ENTRY_POINTS
        )
        monkeypatch.setattr(patching, "ENTRY_POINTS", entries)

    return replace


def doctor(monkeypatch, capsys, checks, *arguments):
    """(exit status, standard output) of `doctor --check` with these checks only."""
    assert checks
    monkeypatch.setattr(runner, "CHECKS", checks)
    status = main(["doctor", "--check", *arguments])
    return status, capsys.readouterr().out


# --- It passes, and it is complete ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.one_version
@pytest.mark.parametrize("devices", [1, 8])
def test_everything_is_checked(devices):
    """All checks pass on one device and on several; every entry point has had fast calls."""
    done = run(
        "-m", "jaxmarshal", "doctor", "--check", "--json",
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}", JAXMARSHAL="off",
    )  # fmt: skip
    facts = json.loads(done.stdout)
    found = facts["check"]
    wrong = [result for result in found["checks"] if result["outcome"] != "same"]
    assert (done.returncode, wrong) == (0, [])
    assert found["passed"]
    assert facts["devices"] == devices
    assert [result["lacking"] for result in found["checks"] if result["lacking"]] == []
    assert facts["speed"]
    assert found["without_fast_calls"] == []
    assert [result["name"] for result in found["checks"]] == [c.name for c in selfcheck.CHECKS]
    assert all(result["observations"] for result in found["checks"])


def test_every_entry_point_and_trap_has_a_check():
    """A new entry point needs one: in `selfcheck`, with its name in `entry_points`."""
    assert {name for c in selfcheck.CHECKS for name in c.entry_points} == set(ENTRIES)
    assert {c.trap for c in selfcheck.CHECKS} - {None} == set(TRAPS)
    assert len({c.name for c in selfcheck.CHECKS}) == len(selfcheck.CHECKS)
    assert all(c.about.endswith(".") for c in selfcheck.CHECKS)


# --- It can fail ----------------------------------------------------------------------------------


def wrong_by_one(function):
    """The function with one added to every number of its results."""
    busy = threading.local()

    def add_one(x):
        if not isinstance(x, jax.Array) or jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
            return x
        return private.device_put(np.asarray(x) + np.ones((), x.dtype), x.sharding)

    def broken(*args, **kwargs):
        result = function(*args, **kwargs)
        if getattr(busy, "now", False):
            return result
        if callable(result):    # an entry point that makes functions: they are what is wrong
            return wrong_by_one(result)
        busy.now = True
        try:
            return jax.tree_util.tree_map(add_one, result)
        finally:
            busy.now = False

    return broken


def raising(function):
    """The function with an error of its own."""

    def broken(*args, **kwargs):
        raise RuntimeError("out of order")

    return broken


@pytest.mark.reports
@pytest.mark.parametrize("damage", [wrong_by_one, raising])
@pytest.mark.parametrize("name", ENTRIES)
def test_a_broken_entry_point_is_found(name, damage, sabotage, monkeypatch, capsys):
    """Exit status 1, and the report names a check that is about this entry point."""
    own = [c for c in selfcheck.CHECKS if name in c.entry_points]
    sabotage(name, damage(ENTRIES[name].accelerated))
    status, output = doctor(monkeypatch, capsys, own)
    assert status == 1
    different = [c.name for c in own if f"  DIFFERENT  {c.name}" in output]
    assert different
    assert f"checks NOT passed: {', '.join(different)}\n" in output


put = private.device_put


def ignores_formats(x, device=None, **options):
    return put(x, device.sharding if isinstance(device, Format) else device, **options)


@functools.cache
def _remembered():
    return {}


def trusts_addresses(x, device=None, **options):
    key = (id(x), device if isinstance(device, jax.Device) else None)
    if isinstance(x, jax.Array) and device is not None:
        return _remembered().setdefault(key, put(x, device, **options))
    return put(x, device, **options)


def forgets_weak_types(x, device=None, **options):
    return put(np.float32(x) if type(x) is float else x, device, **options)


def ignores_guards(x, device=None, **options):
    with jax.transfer_guard("allow"):
        return put(x, device, **options)


def accepts_masks(x, device=None, **options):
    masked = isinstance(x, np.ma.MaskedArray)
    return put(np.asarray(x) if masked else x, device, **options)


def always_commits(x, device=None, **options):
    return put(x, jax.devices()[0] if device is None else device, **options)


def never_shares(x, device=None, **options):
    return put(np.array(x) if isinstance(x, np.ndarray) else x, device, **options).copy()


def wraps_integers(x, device=None, **options):
    return put(x % 2**31 if type(x) is int else x, device, **options)


def never_the_same(x, device=None, **options):
    return put(x, device, **options).copy() if isinstance(x, jax.Array) else put(x, device)


def other_messages(x, device=None, **options):
    try:
        return put(x, device, **options)
    except TypeError as error:
        raise TypeError(f"jaxmarshal: {error}") from None


def keeps_arrays(x, device=None, *, kept=[], **options):    # noqa: B006 (that is the fault)
    kept.append(x)
    return put(x, device, **options)


def undressed(*args, **kwargs):
    return put(*args, **kwargs)


def not_for_threads(x, device=None, *, shared={}, **options):    # noqa: B006 (that is the fault)
    shared["x"] = x
    time.sleep(0.001)
    return put(shared["x"], device, **options)


#: Trap: an accelerated `device_put` that falls into it.
FAULTS = {
    1: ignores_formats, 2: trusts_addresses, 3: forgets_weak_types, 4: ignores_guards,
    5: accepts_masks, 6: always_commits, 7: never_shares, 8: wraps_integers, 9: never_the_same,
    10: other_messages, 11: keeps_arrays, 12: undressed, 13: not_for_threads,
}  # fmt: skip


@pytest.mark.parametrize("trap", FAULTS)
def test_a_trap_is_found(trap, sabotage, monkeypatch, capsys):
    """Of each trap a check tells when an entry point falls into it."""
    own = [c for c in selfcheck.CHECKS if c.trap == trap]
    sabotage("device_put", FAULTS[trap])
    status, output = doctor(monkeypatch, capsys, own, "--json")
    found = json.loads(output)["check"]
    assert (status, found["passed"]) == (1, False)
    assert "different" in [result["outcome"] for result in found["checks"]]


def test_trap_14_is_found(tmp_path, monkeypatch, capsys):
    """An import that initialises a backend: configuration comes too late in the new process."""
    package = tmp_path / "jaxmarshal"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "auto.py").write_text("import jax\njax.devices()\n")
    own = [c for c in selfcheck.CHECKS if c.trap == 14]
    monkeypatch.setattr(jaxmarshal, "__file__", str(package / "__init__.py"))
    status, output = doctor(monkeypatch, capsys, own)
    assert status == 1
    assert f"1 of 1 checks NOT passed: {own[0].name}\n" in output
    assert set(FAULTS) | {14} == set(TRAPS)


def test_a_program_that_fails_is_no_success(monkeypatch, capsys):
    """A check that cannot be performed with plain JAX has compared nothing: exit status 1."""
    before = len(selfcheck.CHECKS)

    @check("hopeless")
    def hopeless(world, record):
        """Nothing."""
        raise RuntimeError("no such thing")

    own = [selfcheck.CHECKS.pop()]
    assert len(selfcheck.CHECKS) == before
    status, output = doctor(monkeypatch, capsys, own)
    assert status == 1
    assert "FAILED     hopeless\n             with plain JAX: RuntimeError: no such thing" in output


def test_a_program_that_fails_with_jaxmarshal_alone(monkeypatch, capsys):
    """What is raised outside of an observed call is a difference, too."""

    @check("one-sided")
    def one_sided(world, record):
        """Nothing."""
        record.fact("before", 1)
        if world.accelerated:
            raise RuntimeError("only here")

    status, output = doctor(monkeypatch, capsys, [selfcheck.CHECKS.pop()])
    assert status == 1
    assert "DIFFERENT  one-sided" in output
    assert "jaxmarshal raised RuntimeError: only here" in output


# --- What it leaves behind ------------------------------------------------------------------------


def test_what_was_installed_is_installed_again(monkeypatch, capsys):
    """Also the counts of the program stay, and JAXMARSHAL=off does."""
    own = [c for c in selfcheck.CHECKS if c.name == "trap 8: Python scalars"]
    monkeypatch.setenv("JAXMARSHAL", "off")
    monkeypatch.delenv("JAXMARSHAL")
    jaxmarshal.install(["device_put", "shard_args"])
    jax.device_put(1.0)
    monkeypatch.setenv("JAXMARSHAL", "off")
    status, output = doctor(monkeypatch, capsys, own)
    assert status == 0
    assert "all 1 checks passed" in output
    assert patching.installed_names() == {"device_put", "shard_args"}
    assert jaxmarshal.stats()["device_put"]["misses_by_reason"]["not_recorded"] >= 1
    assert patching.switched_off()


def test_an_unsupported_version_has_nothing_to_check(monkeypatch, capsys):
    """Without an active entry point every check is inactive, and nothing is compared."""
    monkeypatch.setattr(
        patching, "ENTRY_POINTS",
        tuple(dataclasses.replace(e, active=False) for e in patching.ENTRY_POINTS),
    )
    results = selfcheck.run()
    assert {result.outcome for result in results} == {"inactive"}
    assert len(results) == len(selfcheck.CHECKS)
    assert selfcheck.uncovered(results) == []
