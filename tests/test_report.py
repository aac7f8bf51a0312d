"""`report()`: calls as programs make them, for a person to read."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LAYOUT_OFF
from jax._src import core

import jaxmarshal
from jaxmarshal import _counts, _install, _report, _saving, _stats, fronts
from jaxmarshal.fronts import filtered
from jaxmarshal.reasons import PUBLIC, REASONS, TRACING, reason_for

#: Calls of which a fast one is one call, though it takes several steps.
CALLS = {
    "x[...]": lambda x: x[0],
    "jnp.zeros": lambda x: jnp.zeros(3),
    "jnp.full": lambda x: jnp.full((2,), 1.5),
    "jnp.asarray": lambda x: jnp.asarray(np.ones(3, np.float32)),
    "jax.device_put": lambda x: jax.device_put(np.ones(3, np.float32)),
}


def rows():
    return {row.call: (row.calls, row.fast) for row in jaxmarshal.report().rows}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.skipif(LAYOUT_OFF, reason="no plan is made without object layout")
def test_one_fast_call_is_one_call(call):
    """The steps of `x[0]` and `jnp.zeros` are in `stats()` and not in the report."""
    x = jnp.arange(8.0)
    with jaxmarshal.installed():
        for _ in range(6):
            CALLS[call](x)
        jaxmarshal.reset_stats()
        for _ in range(10):
            CALLS[call](x)
        assert rows() == {call: (10, 10)}
        assert _stats.steps()["jit"]["hits"] <= jaxmarshal.stats()["jit"]["hits"]
        if call == "x[...]":
            assert jaxmarshal.stats()["jit"]["hits"] == 20    # two steps each


def test_a_miss_that_is_handed_on_counts_once():
    """`jnp.asarray` with a dtype leads to `jnp.array`: one call, with its own advice."""
    x = np.ones(3)
    with jaxmarshal.installed():
        jaxmarshal.reset_stats()
        for _ in range(10):
            jnp.asarray(x, jnp.float32)
        text = str(jaxmarshal.report())
        found = rows()
        assert found.pop("jnp.asarray") == (10, 0)
        assert "jnp.array" not in found
    assert "options (10)" in text and "Convert the numpy array first" in text


def test_calls_while_tracing_stand_apart():
    """They are not in the table, and not in the share."""
    with jaxmarshal.installed():
        jaxmarshal.reset_stats()
        jax.jit(lambda x: jax.device_put(x) + jnp.sin(x))(np.ones(3))
        report = jaxmarshal.report()
    assert report.tracing > 0
    assert not any(row.reason and row.reason.name == "trace" for row in report.rows)
    assert f"Apart from these, {report.tracing} calls while JAX was tracing" in str(report)


def counts(hits, **misses):
    return {"hits": hits, "misses": sum(misses.values()), "misses_by_reason": misses}


def test_the_text(monkeypatch):
    """Aligned columns, the most frequent first, then what to do for each reason."""
    monkeypatch.setattr(_saving, "of_a_call", {"getitem": 2e-6, "jit": 3e-6}.get)
    found = {
        "device_put": counts(1, options=2),
        "getitem": counts(999, options=1),
        "jit": counts(5),
        "shard_args": counts(7, options=7),
        "bind": counts(0, trace=4, unknown_type=2),
    }
    report = _report.Report(found, installed=False)
    first, head, *table = str(report).splitlines()
    assert first == (
        "jaxmarshal: 1008 calls, 99.7 % of them fast, at least 2.0 ms saved "
        "(it is not installed now)"
    )
    assert head == (
        "  call              calls     fast  saved, at least  not fast, mostly because of"
    )
    assert table[:3] == [
        "  x[...]             1000   99.9 %           2.0 ms  options (1)",
        "  jitted functions      5  100.0 %            15 µs",
        "  jax.device_put        3   33.3 %                   options (2)",
    ]
    assert table[3].startswith("options, x[...]: The index holds")
    assert table[4].startswith("options, jax.device_put: The call has an option")
    assert table[5].startswith("Apart from these, 6 calls while JAX was tracing")
    assert report.inner == 14
    assert repr(report) == str(report)
    page = report._repr_html_()
    assert page.count("<tr>") == 4 and "<code>options, x[...]</code>" in page


@pytest.mark.parametrize("name", ["device_put", "getitem", "zeros", "asarray", "bind", "functions"])
@pytest.mark.skipif(LAYOUT_OFF, reason="no plan is made without object layout")
def test_what_a_fast_call_saves(name):
    """It is measured once, by calls that are counted nowhere and leave everything as it was."""
    x = jnp.arange(8.0)
    _saving.of_a_call.cache_clear()
    with jaxmarshal.installed():
        for _ in range(6):
            x[0]
        before, documentation = jaxmarshal.stats(), core.__doc__
        assert _saving.saved(name, 1000) > 0
        assert _saving.saved(name, 2000) == 2 * _saving.saved(name, 1000)
        assert (jaxmarshal.stats(), core.__doc__) == (before, documentation)
        x[0]
        assert jaxmarshal.stats()["getitem"]["hits"] == before["getitem"]["hits"] + 1


def test_nothing_is_measured_where_it_would_be_seen():
    """While JAX traces, without hits, and of what has no small call."""
    found = []
    jax.jit(lambda x: (found.append(_saving.saved("getitem", 5)), x)[1])(1.0)
    assert found == [None]
    assert _saving.saved("getitem", 0) is None
    assert _saving.saved("shard_args", 5) is None


def test_no_calls():
    """One line, and no table."""
    assert str(_report.Report({})) == "jaxmarshal: no calls"
    assert "<table>" not in _report.Report({})._repr_html_()


def test_sums_and_differences():
    """Of several processes, and of two moments."""
    one = {"jit": counts(2, aval=1)}
    total = _counts.added([one, {"jit": counts(1, aval=2, hook=1), "bind": counts(3)}])
    assert total == {"jit": counts(3, aval=3, hook=1), "bind": counts(3)}
    assert _counts.less(total, one) == {"jit": counts(1, aval=2, hook=1), "bind": counts(3)}


def test_names_fit():
    """What the report names are entry points and reasons that there are."""
    entries = {entry.name for entry in (*_install.ENTRY_POINTS, *fronts.FRONTS)} | {filtered.NAME}
    names = {reason.name for reason in REASONS}
    assert entries >= set(PUBLIC)
    assert all(names >= set(reasons) for reasons in TRACING.values())
    for entry in PUBLIC:
        for name in names:
            reason = reason_for(entry, name)
            assert reason.name == name and reason.meaning.endswith(".")
