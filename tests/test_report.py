"""`report()`: calls as programs make them, for a person to read."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LAYOUT_OFF

import jaxmarshal
from jaxmarshal import _counts, _install, _report, _stats, fronts
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


def test_the_text():
    """Aligned columns, the most frequent first, then what to do for each reason."""
    found = {
        "device_put": counts(1, options=2),
        "getitem": counts(999, options=1),
        "jit": counts(5),
        "shard_args": counts(7, options=7),
        "bind": counts(0, trace=4, unknown_type=2),
    }
    report = _report.Report(found, installed=False)
    first, head, *table = str(report).splitlines()
    assert first == "jaxmarshal: 1008 calls, 99.7 % of them fast (it is not installed now)"
    assert head == "  call              calls     fast  not fast, mostly because of"
    assert table[:3] == [
        "  x[...]             1000   99.9 %  options (1)",
        "  jitted functions      5  100.0 %",
        "  jax.device_put        3   33.3 %  options (2)",
    ]
    assert table[3].startswith("options, x[...]: The index holds")
    assert table[4].startswith("options, jax.device_put: The call has an option")
    assert table[5].startswith("Apart from these, 6 calls while JAX was tracing")
    assert report.inner == 14
    assert repr(report) == str(report)
    page = report._repr_html_()
    assert page.count("<tr>") == 4 and "<code>options, x[...]</code>" in page


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
    entries = {entry.name for entry in (*_install.ENTRY_POINTS, *fronts.FRONTS)}
    names = {reason.name for reason in REASONS}
    assert entries >= set(PUBLIC)
    assert all(names >= set(reasons) for reasons in TRACING.values())
    for entry in PUBLIC:
        for name in names:
            reason = reason_for(entry, name)
            assert reason.name == name and reason.meaning.endswith(".")
