"""`report()`: calls as programs make them, for a person to read."""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_code
from conftest import LAYOUT_OFF
from jax._src import core
from support import REPOSITORY

import jaxmarshal
from jaxmarshal import fronts
from jaxmarshal._jax import patching
from jaxmarshal._reports import counting, saving, summary, sums
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
    """Calls and fast ones by call, without the place of a definition."""
    found = jaxmarshal.report().rows
    return {row.call.partition(", ")[0]: (row.calls, row.fast) for row in found}


#: What else a call does by itself: `x > x` in the arguments.
BESIDE = {"jnp.where": "greater (jit)"}


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
            assert counting.inner()["jit"]["hits"] == 20


def noticed(*args, **kwargs):
    """In the place of a function of jaxmarshal's, in whose module it runs."""
    import sys

    sys.noticed.append(1)


def every_python_function():
    """All functions of jaxmarshal's that are written in Python, methods too."""
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] != "jaxmarshal" or module is None:
            continue
        spaces = [vars(module), *(vars(x) for x in vars(module).values() if isinstance(x, type))]
        for found in [x for space in spaces for x in space.values()]:
            if (
                inspect.isfunction(found) and not found.__closure__
                and found.__code__.co_filename.startswith(str(Path(jaxmarshal.__file__).parent))
            ):  # fmt: skip
                yield found


@pytest.mark.skipif(LAYOUT_OFF, reason="no plan is made without object layout")
@pytest.mark.parametrize("call", [*CALLS, "jitted", "compiled"])
def test_log_and_report_cost_hits_nothing(call, caplog, monkeypatch):
    """With the log on and a report asked for, no Python of jaxmarshal's runs in a hit."""
    caplog.set_level(logging.DEBUG, "jaxmarshal")
    monkeypatch.setattr(sys, "noticed", [], raising=False)
    x = jnp.arange(8.0)
    function = {"jitted": jax.jit(jnp.sin), "compiled": jax.jit(jnp.cos).lower(x).compile()}.get(
        call, CALLS.get(call)
    )
    with jaxmarshal.installed():
        for _ in range(10):
            function(x)
        str(jaxmarshal.report())
        jaxmarshal.reset_stats()
        caplog.clear()
        with pytest.MonkeyPatch.context() as patch:
            for python in {*every_python_function()}:
                patch.setattr(python, "__code__", noticed.__code__)
            for _ in range(20):
                function(x)
            found = [*sys.noticed], [*caplog.records]
            with pytest.raises(TypeError):
                jaxmarshal.device_put(object())    # a miss, which is logged
        counts = jaxmarshal.stats()
        assert found == ([], []) and sys.noticed
        assert sum(count["hits"] for count in counts.values()) >= 20
        assert sum(count["misses"] for count in counts.values()) == 1


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
        assert rows() == {"x[...]": (5, 5), "slow (jit)": (1, 0)}


def line_of(function):
    return f"tests/reports/test_report.py:{function.__code__.co_firstlineno}"


def double(x):
    return x * 2


def halve(x):
    return x / 2


@pytest.mark.skipif(LAYOUT_OFF, reason="no plan is made without object layout")
def test_each_function_has_a_row(monkeypatch):
    """Jitted or compiled: its name and the line of its definition, also after it has died."""
    monkeypatch.chdir(REPOSITORY)
    x = jnp.arange(8.0)

    def calls_of_two():
        jitted, compiled = jax.jit(double), jax.jit(halve).lower(x).compile()
        for _ in range(10):
            jitted(x)
            compiled(x)
        again = jax.jit(functools.partial(double))    # the same function
        for _ in range(10):
            again(x)

    with jaxmarshal.installed():
        calls_of_two()
        gc.collect()
        found = {row.call: (row.calls, row.fast) for row in jaxmarshal.report().rows}
        assert found == {
            f"double (jit), {line_of(double)}": (20, 18),
            f"halve (compiled), {line_of(halve)}": (10, 9),
        }
        # What both rows say is said once, of all such functions.
        text = str(jaxmarshal.report())
        assert text.count("jaxmarshal has not recorded such a call yet") == 1
        jaxmarshal.reset_stats()
        assert jaxmarshal.report().rows == []


@pytest.mark.skipif(LAYOUT_OFF, reason="no plan is made without object layout")
def test_calls_inside_of_others_are_no_calls_of_functions():
    """What a call of an operator leads to has no row, whoever calls the same function besides."""
    x = jnp.arange(8.0)
    with jaxmarshal.installed():
        for _ in range(6):
            x.at[0].set(1.0), jnp.vstack([x, x])
        jaxmarshal.reset_stats()
        for _ in range(6):
            x.at[0].set(1.0), jnp.vstack([x, x])
        assert set(rows()) == {"x.at[...].set", "jnp.vstack"}


@pytest.mark.parametrize("refused", ["leave", "skip", "context", "host"])
@pytest.mark.skipif(LAYOUT_OFF, reason="no plan is made without object layout")
def test_misses_of_a_function(refused):
    """However a call misses, its function has it: a row's reasons are all there are."""
    x = jnp.arange(8.0)
    function = {
        "leave": jax.jit(lambda x: (jax.debug.callback(lambda: None), x)[1]),
        "skip": jax.jit(lambda x: x + 1), "context": jax.jit(lambda x: x - 1),
        "host": jax.jit(lambda x, y: x + y),
    }[refused]  # fmt: skip
    with jaxmarshal.installed():
        for i in range(40):
            if refused == "context":
                with jax.transfer_guard("disallow") if i % 2 else jax.debug_nans(True):
                    function(x)
            elif refused == "skip":
                function(jnp.zeros(i + 1, np.int8))
            else:
                function(*([np.ones(10_000)] * 2 if refused == "host" else [x]))
        counts = jaxmarshal.stats()["jit"]
        by_function = counting.by_function()["jit"]
        named = [count for name, count in by_function.items() if name.startswith("<lambda> (jit)")]
        (count,) = [count for count in named if count["hits"] + count["misses"]]
        assert count["hits"] + count["misses"] == 40
        assert count["misses"] > 20 or refused == "context"
        assert counts["hits"] >= count["hits"] and counts["misses"] >= count["misses"]


def test_functions_that_share_a_row():
    """Those that are called least, and those that nobody knows by name."""
    functions = {f"f{i} (jit), s.py:{i}": counts(100 - i, aval=1) for i in range(20)}
    hits = sum(count["hits"] for count in functions.values())
    found = {"jit": {**counts(hits + 7, aval=25, trace=3), "by_function": functions}}
    report = summary.Report(found)
    shown = summary.MOST_FUNCTIONS
    others, *rows = report.rows
    assert others.call == "other jitted functions"
    assert [row.call for row in rows] == list(functions)[:shown]
    rest = list(functions.values())[shown:]
    assert others.fast == sum(count["hits"] for count in rest) + 7
    assert others.calls == others.fast + len(rest) + 5
    assert sum(row.calls for row in report.rows) == hits + 7 + 25
    assert report.tracing == 3


def test_names_in_a_notebook():
    """They are text, whatever they look like."""
    functions = {"<lambda> (jit), s.py:1": counts(10)}
    page = summary.Report({"jit": {**counts(10), "by_function": functions}})._repr_html_()
    assert "&lt;lambda&gt; (jit), s.py:1</td>" in page and "<lambda>" not in page


def test_a_function_that_never_hits():
    """Its misses are those of one function: no first calls."""
    functions = {"f (jit), s.py:1": counts(0, not_recorded=1000)}
    report = summary.Report({"jit": {**counts(0, not_recorded=1000), "by_function": functions}})
    assert "not_recorded: 1000 such calls missed so far, and none hit." in str(report)


def test_names_without_end():
    """A program that defines function after function runs out of rows, and not of memory."""
    done = run_code("""
        import jax
        import jaxmarshal.auto
        from jaxmarshal._reports import counting

        jax.config.update("jax_disable_jit", True)
        jax.device_put(1.0)
        for i in range(4500):
            found = {}
            exec(compile(f"def f{i}(x): return x", "many.py", "exec"), found)
            jax.jit(found[f"f{i}"])(1.0)
        names = counting.by_function()["jit"]
        jaxmarshal.device_put(1.0)
        print(4000 < sum("many.py" in name for name in names) <= 4096 == len(names))
        (row,) = [row for row in jaxmarshal.report().rows if row.call == "other jitted functions"]
        print(row.calls)
    """)
    assert done.stdout.split() == ["True", "4488"]


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
    """`jnp.asarray` of a range leads to `jnp.array`: one call, with its own advice."""
    with jaxmarshal.installed():
        jaxmarshal.reset_stats()
        for _ in range(10):
            jnp.asarray(range(3))
        text = str(jaxmarshal.report())
        found = rows()
        assert found.pop("jnp.asarray") == (10, 0)
        assert "jnp.array" not in found
    assert "options (10)" in text and "make long lists numpy arrays" in text


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
    monkeypatch.setattr(saving, "of_a_call", {"getitem": 2e-6, "jit": 3e-6}.get)
    found = {
        "device_put": counts(1, options=2),
        "getitem": counts(999, options=1),
        "jit": counts(5),
        "shard_args": counts(7, options=7),
        "bind": counts(0, trace=4, unknown_type=2),
    }
    report = summary.Report(found, installed=False)
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


@pytest.mark.parametrize("name", ["device_put", "getitem", "zeros", "asarray", "bind"])
@pytest.mark.skipif(LAYOUT_OFF, reason="no plan is made without object layout")
def test_what_a_fast_call_saves(name):
    """It is measured once, by calls that are counted nowhere and leave everything as it was."""
    x = jnp.arange(8.0)
    saving.of_a_call.cache_clear()
    with jaxmarshal.installed():
        for _ in range(6):
            x[0]
        before, documentation = jaxmarshal.stats(), core.__doc__
        assert saving.saved(name, 1000) > 0
        assert saving.saved(name, 2000) == 2 * saving.saved(name, 1000)
        assert (jaxmarshal.stats(), core.__doc__) == (before, documentation)
        x[0]
        assert jaxmarshal.stats()["getitem"]["hits"] == before["getitem"]["hits"] + 1


def test_nothing_is_measured_where_it_would_be_seen():
    """While JAX traces, without hits, and of what has no small call."""
    found = []
    jax.jit(lambda x: (found.append(saving.saved("getitem", 5)), x)[1])(1.0)
    assert found == [None]
    assert saving.saved("getitem", 0) is None
    assert saving.saved("shard_args", 5) is None
    assert saving.saved("functions", 5) is None    # it is next to nothing for some of them


def test_a_saving_is_between_jax_and_ours(monkeypatch):
    """What is timed is JAX's own function while all step aside, and ours while none does."""
    timed = []

    def seconds(call):
        is_alone = core.__doc__ == "JAX alone"
        timed.append((is_alone, call.func))
        return 5.0 if is_alone else 2.0

    monkeypatch.setattr(saving, "_seconds", seconds)
    saving.of_a_call.cache_clear()
    try:
        assert saving.of_a_call("getitem") == 3.0
    finally:
        saving.of_a_call.cache_clear()
    (entry,) = [entry for entry in patching.ENTRY_POINTS if entry.name == "getitem"]
    assert set(timed) == {(True, entry.original), (False, entry.accelerated)}


def test_no_calls():
    """One line, and no table."""
    assert str(summary.Report({})) == "jaxmarshal: no calls"
    assert "<table>" not in summary.Report({})._repr_html_()


def test_sums_and_differences():
    """Of several processes, and of two moments."""
    one = {"jit": counts(2, aval=1)}
    total = sums.added([one, {"jit": counts(1, aval=2, hook=1), "bind": counts(3)}])
    assert total == {"jit": counts(3, aval=3, hook=1), "bind": counts(3)}
    assert sums.less(total, one) == {"jit": counts(1, aval=2, hook=1), "bind": counts(3)}


def test_names_fit():
    """What the report names are entry points and reasons that there are."""
    entries = {entry.name for entry in (*patching.ENTRY_POINTS, *fronts.FRONTS)} | {filtered.NAME}
    names = {reason.name for reason in REASONS}
    assert entries >= set(PUBLIC)
    assert all(names >= set(reasons) for reasons in TRACING.values())
    for entry in PUBLIC:
        for name in names:
            reason = reason_for(entry, name)
            assert reason.name == name and reason.meaning.endswith(".")
