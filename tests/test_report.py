"""`report()`: calls as programs make them, for a person to read."""

from __future__ import annotations

import threading

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
    "x + y": lambda x: x + 2.5,
    "y - x": lambda x: 1 - x,
    "x.reshape": lambda x: x.reshape(2, 4),
    "x.at[...].set": lambda x: x.at[0].set(1.0),
    "jnp.where": lambda x: jnp.where(x > x, x, x),
    "jax.random.split": lambda x: jax.random.split(KEY),
    "jax.nn.relu": lambda x: jax.nn.relu(x),
    "single operations": lambda x: jax.lax.neg_p.bind(x),
}
KEY = jax.random.PRNGKey(0)


def rows():
    return {row.call: (row.calls, row.fast) for row in jaxmarshal.report().rows}


#: What else a call does by itself: `x > x` in the arguments.
BESIDE = {"jnp.where": "jitted functions"}


@pytest.mark.parametrize("call", CALLS)
def test_one_call_is_one_call(call):
    """Slow or fast: what a call leads to is in `stats()` and not in the report."""
    x = jnp.arange(8.0)
    CALLS[call](x)
    with jaxmarshal.installed():
        for many in (1, 2, 10):
            jaxmarshal.reset_stats()
            for _ in range(many):
                CALLS[call](x)
            found = {name: calls for name, (calls, _) in rows().items()}
            assert found == {call: many, **({BESIDE[call]: many} if call in BESIDE else {})}
        assert rows()[call] == (10, 10) or LAYOUT_OFF or call == "x.at[...].set"
        if call == "x[...]" and not LAYOUT_OFF:
            assert jaxmarshal.stats()["jit"]["hits"] == 20    # two steps each
            assert _stats.inner()["jit"]["hits"] == 20


def test_calls_that_fail_are_over():
    """After an error, inside or not, the next call is one that the program makes."""
    x = jnp.arange(8.0)
    with jaxmarshal.installed():
        for call in (
            lambda: x.reshape(3), lambda: jax.device_put(object()), lambda: x + "text",
            lambda: jnp.zeros(-1), lambda: jnp.asarray(object()), lambda: x["text"],
            lambda: jax.jit(lambda y: 1 / 0)(x), lambda: jax.lax.neg_p.bind("text"),
            lambda: jax.jit(jnp.sin).lower(x).compile()(x, x),
            lambda: jaxmarshal.filter_jit(lambda y: 1 / 0)(x),
        ):  # fmt: skip
            for _ in range(3):
                with pytest.raises((TypeError, ValueError, ZeroDivisionError, IndexError)):
                    call()
            jaxmarshal.reset_stats()
            jnp.zeros(3)
            assert rows() == {"jnp.zeros": (1, rows()["jnp.zeros"][1])}


def test_calls_of_other_threads_are_no_steps():
    """What another thread calls meanwhile is a call of the program's."""
    x = jnp.arange(8.0)
    entered, go_on = threading.Event(), threading.Event()

    @jax.jit
    def slow(y):
        entered.set()
        assert go_on.wait(60)
        return y

    with jaxmarshal.installed():
        for _ in range(6):
            x[0]
        jaxmarshal.reset_stats()
        thread = threading.Thread(target=slow, args=(x,))
        thread.start()
        assert entered.wait(60)
        for _ in range(5):
            x[0]
        go_on.set()
        thread.join()
        assert rows() == {"x[...]": (5, 0 if LAYOUT_OFF else 5), "jitted functions": (1, 0)}


def test_calls_of_functions_that_are_not_compiled():
    """With `jax.disable_jit()` a function's own calls are those of the program."""
    x = jnp.arange(8.0)
    with jaxmarshal.installed(), jax.disable_jit():
        function = jax.jit(lambda y: (y[0], y[1]))
        function(x)
        jaxmarshal.reset_stats()
        function(x)
        assert rows()["x[...]"][0] == 2


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
