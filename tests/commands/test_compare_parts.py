"""What `compare` makes of what was recorded: phases, estimates, graphs. No process is started."""

from __future__ import annotations

import functools
import io
import os
import re
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarshal._core.entries import watch, which_functions
from jaxmarshal._jax import patching, private
from jaxmarshal._reports import definitions
from jaxmarshal._tools import (
    call_sites,
    comparison,
    comparison_text,
    first_calls,
    profiles,
    recording,
)
from jaxmarshal.reasons import PUBLIC, reason_for

pytestmark = [pytest.mark.commands, pytest.mark.reports]


def outcomes(**found):
    return {
        reason: {"calls": calls, "seconds": seconds, "longest": longest}
        for reason, (calls, seconds, longest) in found.items()
    }


def row(entry_point="device_put", line=1, first=None, **found):
    return {
        "entry_point": entry_point, "name": "", "file": "f", "line": line, "function": "g",
        "is_definition": False,
        "outcomes": {"first": first or {}, "steady": outcomes(**found)},
    }  # fmt: skip


def savings(plain, ours):
    found = comparison.sites([*plain], [*ours])
    return {(row["entry_point"], row["line"]): row["estimated_saving"] for row in found}


def plain_row(calls, seconds, longest, **options):
    made = row(**options)
    made["outcomes"]["steady"] = {"": {"calls": calls, "seconds": seconds, "longest": longest}}
    return made


def test_the_estimate_where_some_calls_hit():
    """Misses × (mean of a missed call − mean of a hit) of the same row, the slowest left out."""
    ours = [row(hit=(11, 20.0, 10.0), options=(3, 102.0, 92.0))]
    assert savings([], ours)["device_put", 1] == pytest.approx(3 * (5 - 1))
    # What cannot be avoided does not count: the first recording, and calls inside a trace.
    ours = [row(hit=(11, 20.0, 10.0), not_recorded=(1, 9.0, 9.0), trace=(4, 99.0, 50.0))]
    assert savings([], ours)["device_put", 1] == 0
    # Hits that are slower save nothing.
    ours = [row(hit=(2, 20.0, 10.0), options=(2, 2.0, 1.0))]
    assert savings([], ours)["device_put", 1] == 0


def test_the_estimate_where_no_call_hits():
    """As many times faster as the hits of the entry point are, or of the script; or unknown."""
    plain = [plain_row(2, 8.0, 4.0), plain_row(2, 20.0, 10.0, entry_point="jit")]
    ours = [
        row(hit=(2, 2.0, 1.0)), row("jit", hit=(2, 10.0, 5.0)),
        row(line=2, options=(2, 16.0, 8.0)), row("jit", line=2, options=(2, 16.0, 8.0)),
        row("asarray", options=(2, 16.0, 8.0)),
    ]  # fmt: skip
    found = savings(plain, ours)
    assert found["device_put", 2] == pytest.approx(2 * (8 - 8 / 4))
    assert found["jit", 2] == pytest.approx(2 * (8 - 8 / 2))
    assert found["asarray", 1] == pytest.approx(2 * (8 - 8 / ((4 * 2 + 10 * 2) / (2 + 10))))
    assert savings([], ours[2:])["device_put", 2] is None


def test_no_estimate_above_what_jax_needs():
    """Counting, and a busy machine, may make a miss cost more than the call costs in plain JAX."""
    ours = [row(hit=(11, 2.0, 1.0), options=(3, 102.0, 92.0))]
    assert savings([plain_row(14, 7.0, 3.0)], ours)["device_put", 1] == 7.0


def test_first_calls_save_nothing():
    """However long compiling takes, it is no saving that is left."""
    first = outcomes(not_recorded=(1, 800.0, 800.0), options=(5, 99.0, 90.0))
    (found,) = comparison.sites([row(first=first)], [row(first=first)])
    assert found["estimated_saving"] == 0
    assert found["first"]["jaxmarshal"] == {"calls": 6, "seconds": 899.0}
    assert found["plain"]["calls"] == found["jaxmarshal"]["calls"] == 0


def test_a_site_of_one_run_only():
    """A call that only one run made is a row all the same."""
    (found,) = comparison.sites([row(hit=(1, 1.0, 1.0))], [])
    assert (found["plain"]["calls"], found["jaxmarshal"]["calls"]) == (1, 0)


WARMUP = {"calls": 3, "seconds": None}


def compared(plain, ours, warmup=WARMUP, runs=("plain", "jaxmarshal")):
    """A comparison of recorded rows, as far as its words need it."""
    runs = {run: {"profile": {"time": 0.0}, "steady_profile": {"time": 0.0}} for run in runs}
    sites = comparison.sites(plain, ours)
    return {"sites": sites, "runs": runs, "warmup": warmup, "functions": []}


def test_the_summary():
    """Calls, both times and the share of hits."""
    plain = [plain_row(4, 8.0, 4.0)]
    ours = [row(hit=(3, 1.5, 1.0), options=(1, 0.5, 0.5))]
    assert comparison_text.summary(compared(plain, ours)) == (
        "4 calls after the first ones took 8000.00 ms with plain JAX and 2000.00 ms with "
        "jaxmarshal; 75.0% of them were hits."
    )


def test_the_summary_of_unequal_work():
    """A loop limited by time, or interrupted: equally many calls of each row, by their mean."""
    plain = [plain_row(4, 8.0, 4.0), plain_row(5, 1.0, 1.0, line=2), plain_row(9, 9.0, 1.0, line=3)]
    ours = [
        row(hit=(6, 1.5, 1.0), options=(2, 2.5, 0.5)), row(line=2, hit=(5, 0.5, 0.5)),
        row(line=4, hit=(1, 7.0, 7.0)),
    ]  # fmt: skip
    assert comparison_text.summary(compared(plain, ours)) == (
        "9 calls after the first ones took 9000.00 ms with plain JAX and 2500.00 ms with "
        "jaxmarshal; 88.9% of them were hits. The plain run made 18 such calls and the jaxmarshal "
        "run 14: of each row the smaller number counts, at the mean time of a call."
    )


def test_the_summary_where_nothing_can_be_compared():
    """It says what there is, and why the other run has nothing."""
    plain, first = [plain_row(4, 8.0, 4.0)], [row(first=outcomes(hit=(7, 9.0, 9.0)))]
    assert comparison_text.summary(compared(plain, [], runs=["plain"])) == (
        "4 calls after the first ones took 8000.00 ms with plain JAX. Nothing to compare: there is "
        "no jaxmarshal run."
    )
    assert comparison_text.summary(compared(first, first, {"calls": None, "seconds": 3.0})) == (
        "Nothing to compare: all 7 calls of the plain run are first ones: the calls of the first "
        "3 s, and those that trace or compile (see --warmup); all 7 calls of the jaxmarshal run "
        "are first ones: the calls of the first 3 s, and those that trace or compile (see "
        "--warmup)."
    )
    assert comparison_text.summary(compared(plain, first)) == (
        "4 calls after the first ones took 8000.00 ms with plain JAX. Nothing to compare: all 7 "
        "calls of the jaxmarshal run are first ones: the first 3 calls of each row, and those that "
        "trace or compile (see --warmup)."
    )
    assert "the plain run called nothing" in comparison_text.summary(compared([], []))
    ours = [row(line=2, hit=(1, 1.0, 1.0))]
    assert comparison_text.summary(compared(plain, ours)).endswith("no row has calls in both runs.")


def test_a_side_without_calls():
    """It has a dash for a time: 0.00 would be a fast run."""
    (_, line) = comparison_text.site_table(compared([plain_row(4, 8.0, 4.0)], [])["sites"])
    assert line[2:7] == ["4/0", "–", "8000.00", "–", "–"]
    first = [row(first=outcomes(hit=(7, 9.0, 9.0)))]
    (_, line) = comparison_text.first_table(compared([], first)["sites"])
    assert line[2:] == ["0/7", "–", "9000.00"]
    result = compared([plain_row(4, 8.0, 4.0)], [], runs=["plain"])
    functions = [dict(name="f", file="f.py", kind="script", plain=1.0, jaxmarshal=0.0)]
    table = comparison_text.tables({**result, "functions": functions})[-1]
    assert table.make(table.rows)[1][2:] == ["1000.00", "–"]


class Terminal(io.StringIO):
    """An error output that a person looks at."""

    def isatty(self):
        return True


def shown(monkeypatch, result, columns):
    """What a terminal of this width gets of the first table."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    comparison_text.print_table(comparison_text.tables(result)[0])
    return re.sub("\x1b\\[[0-9;]*m", "", sys.stderr.getvalue()).splitlines()


def called(name, entry_point, **options):
    made = row(entry_point, **options)
    return {**made, "name": name, "file": f"{os.getcwd()}/examples/training.py", "function": "main"}


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_a_terminal(monkeypatch, columns):
    """Places and numbers are whole at any width, and no line is wider; advice is wrapped."""
    pytest.importorskip("rich", reason="rich is not installed: the tables were NOT looked at")
    ours = [
        called("jnp.concatenate", "functions", line=12, hit=(1000, 1.0, 0.5)),
        called("", "device_put", line=345, options=(33, 1.0, 0.5)),
        called("jnp.stack", "functions", line=7, options=(3, 0.5, 0.5)),
    ]
    lines = shown(monkeypatch, compared(ours, ours), columns)
    places = ["examples/training.py:12, in main" if columns == 200 else "…/training.py:12",
              "…/training.py:345", "…/training.py:7"]  # fmt: skip
    for found in places:
        assert any(found.removeprefix("…/") in line for line in lines), lines
    assert max(map(len, lines)) <= columns
    text = " ".join(line.strip() for line in lines)
    for entry_point in ("device_put", "functions"):
        reason = reason_for(entry_point, "options")
        told = f"options, {PUBLIC[entry_point]}: {reason.meaning} What to do: {reason.advice}"
        assert text.count(told) == 1


def test_advice():
    """One line for each reason shown; where it means one thing only, by its name alone."""
    rows = compared([], [row(options=(2, 1.0, 0.5)), row(line=2, options=(1, 1.0, 0.5))])["sites"]
    reason = reason_for("device_put", "options")
    assert comparison_text.advice(rows) == [
        ("options", f"{reason.meaning} What to do: {reason.advice}")
    ]


def test_advice_for_many_misses():
    """Calls that miss again and again are no first calls, and a jitted function is one function."""
    ours = [
        row(not_recorded=(2, 1.0, 0.5)), row(line=2, not_recorded=(1000, 1.0, 0.5)),
        {**row("jit", not_recorded=(1000, 1.0, 0.5)), "name": "step", "is_definition": True},
    ]  # fmt: skip
    told = dict(comparison_text.advice(compared([], ours)["sites"]))
    assert list(told) == [
        "not_recorded, jax.device_put",
        "not_recorded, device_put at f:2, in g, step (jit) at f:1",
    ]
    few, many = told.values()
    assert "Nothing for the first calls of a kind" in few
    assert many.startswith("1000 such calls missed so far, and none hit.")
    assert "What to do: Pad to a few shapes" in many


def test_names_of_functions():
    """As programs write them: of modules, methods, and objects that are called."""
    by_name = {
        which_functions.name_of(place.original, place.holder, place.attribute)
        for entry in patching.ENTRY_POINTS if entry.name == "functions" for place in entry.places
    }  # fmt: skip
    assert {"jnp.concatenate", "jax.random.split", "x.at[...].set", "x.astype", ""} <= by_name
    assert which_functions.name_of_object(jax.nn.relu) == "jax.nn.relu"
    assert which_functions.name_of_object(object()) == ""


def test_which_calls_are_first_ones():
    """So many of each row, those in which JAX compiles, and those while it traces."""
    phases = first_calls.Phases(2, None)
    found = [phases.of(name, 0, 5, 6) for name in "aababb"]
    assert found == ["first", "first", "first", "steady", "first", "steady"]
    assert phases.intervals == [(5, 6)] * 4
    phases._heard("/jax/core/compile/backend_compile_duration", 1e-6)
    assert phases.of("a", 0, 5, 6) == "first"
    assert phases.of("a", phases.before(), 5, 6) == "steady"
    phases._heard("/jax/something_else", 1.0)
    assert phases.of("a", 1, 5, 6) == "steady"
    known = list(phases.intervals)
    assert phases.of("a", None, 5, 6) == phases.of("new", None, 5, 6) == "first"
    assert phases.intervals == known    # the call that traces has them in its own
    assert [phases.of("new", 1, 5, 6) for _ in range(3)] == ["first", "first", "steady"]


def test_seconds_of_first_calls():
    """The end of a call that began in time counts as well."""
    phases = first_calls.Phases(None, 100.0)
    ((start, end),) = phases.intervals
    assert end - start == pytest.approx(100e9, rel=1e-3)
    assert phases.of("a", 0, end - 1, end + 5) == "first"
    assert phases.of("a", 0, end, end + 5) == "steady"


def test_while_jax_traces():
    """A program that is written down is told from `grad` and `vmap`, which run at once."""
    phases, found = first_calls.Phases(0, None), {}

    def look(name, x):
        found[name] = phases.before() is None
        return x * 2.0

    jax.jit(lambda x: look("jit", x))(1.0)
    jax.jit(jax.grad(lambda x: look("jit of grad", x)))(1.0)
    jax.grad(lambda x: look("grad", x))(1.0)
    jax.vmap(lambda x: look("vmap", x))(jnp.ones(2))
    look("nothing", 1.0)
    assert found == {
        "jit": True, "jit of grad": True, "grad": False, "vmap": False, "nothing": False
    }  # fmt: skip


def test_another_thread_compiles():
    """Its time is not that of the main thread, whose profile is taken."""
    phases = first_calls.Phases(0, None)
    thread = threading.Thread(target=phases._heard, args=(f"{first_calls.COMPILING}x", 1.0))
    thread.start()
    thread.join()
    assert phases.intervals == [] and phases.before() == 0


def test_intervals():
    """Overlapping ones become one; a time is in it from its start, and not at its end."""
    merged = first_calls.union([(5, 9), (1, 3), (2, 4), (6, 7), (20, 21)])
    assert merged == [(1, 4), (5, 9), (20, 21)]
    assert [t for t in range(25) if first_calls.within(merged, t)] == [1, 2, 3, 5, 6, 7, 8, 20]
    assert not first_calls.within([], 3)


def stack(*frames):
    return [f"{name}\x00{file}\x00{line}\x01l5" for name, file, line in frames]


def test_samples():
    """Neighbours that are alike are one; those in first calls and in imports are not steady."""
    a, b = stack(("main", "s.py", 1)), stack(("main", "s.py", 1), ("f", "s.py", 2))
    importing = stack(("main", "s.py", 1), ("_find_and_load", "<frozen importlib._bootstrap>", 1))
    program = [*importing, *stack(("loop", "t.py", 1))]
    records = [(a, 1.0), (a, 1.0), (b, 1.0), (b, 1.0), (importing, 1.0), (program, 1.0)]
    found = recording.samples(records, [(int(3e9), int(4e9))], 0)
    assert found["seconds"] == [2.0, 1.0, 1.0, 1.0, 1.0]
    assert found["steady"] == [True, True, False, False, True]
    assert [len(stack) for stack in found["stacks"]] == [1, 2, 2, 2, 3]
    assert found["frames"][0] == {"name": "main", "file": "s.py", "line": 1, "kind": "script"}


def test_the_tree_of_samples():
    """Equal stacks are one frame wherever they were sampled; a deep recursion is cut off."""
    a, b = stack(("main", "s.py", 1), ("a", "s.py", 2)), stack(("main", "s.py", 1))
    found = recording.samples([(a, 1.0), (b, 2.0)] * 2, [(0, int(0.9e9))], 0)
    root = profiles.tree(found)
    (top,) = root["children"]
    assert (root["time"], top["name"], top["line"], top["time"]) == (6.0, "main", 1, 6.0)
    assert [(child["name"], child["time"]) for child in top["children"]] == [("a", 2.0)]
    assert profiles.tree(found, steady_only=True)["time"] == 5.0
    deep = recording.samples([(stack(*(("f", "s.py", i) for i in range(9000))), 1.0)], [], 0)
    assert len(list(profiles.walk(profiles.tree(deep)))) == recording.MOST_FRAMES + 1


def test_where_functions_are_defined():
    """Through whatever wraps them; and the names of functions that are compiled ahead of time."""

    def plain(x):
        return x

    class Called:
        def method(self, x):
            return x

        def __call__(self, x):
            return x

    line = plain.__code__.co_firstlineno
    for made, expected in (
        (plain, line), (functools.partial(plain), line), (functools.wraps(plain)(Called()), line),
        (Called().method, line + 4), (Called(), line + 7),
    ):  # fmt: skip
        site = call_sites.site_of_function("jit", jax.jit(made))
        assert (site.file, site.line, site.is_definition) == (__file__, expected, True)
    compiled = jax.jit(plain).lower(1.0).compile()
    assert private.source_of(compiled) == ("plain", __file__, line)
    assert private.source_of(object()) is None
    assert call_sites._site_of_compiled(compiled)[:4] == ("compiled_call", "plain", __file__, line)


def test_nothing_is_asked_to_find_a_definition():
    """Neither attributes nor descriptors of the program's run: they may do anything."""
    asked = []

    class Asked:
        def __getattr__(self, name):
            asked.append(name)
            raise AttributeError(name)

        @property
        def __wrapped__(self):
            asked.append("__wrapped__")

        def __call__(self, x):
            return x

    for made in (Asked(), functools.partial(Asked()), Asked().__call__):
        function = jax.jit(made)
        asked.clear()
        definitions.of_jitted(function)
        assert asked == []


def some_function(x):
    """A function of an entry point that has several."""
    return x


def test_the_name_of_a_function(monkeypatch):
    """A row has it where the name of the entry point does not say it."""
    monkeypatch.setattr(call_sites, "outcomes", {})
    assert call_sites.counted("bind", some_function)(1) == 1
    assert call_sites.counted("some_function", some_function)(2) == 2
    by_name, by_entry_point = call_sites.outcomes
    assert (by_name.entry_point, by_name.name) == ("bind", "some_function")
    assert by_name.function == "test_the_name_of_a_function"
    assert (by_entry_point.entry_point, by_entry_point.name) == ("some_function", "")
    assert comparison_text.call(by_name._asdict()) == "some_function (bind)"


@pytest.fixture
def watched():
    """A jitted function, and the list to which its hook adds."""
    calls = []

    def make(_):
        def hook(call):
            calls.append("before")
            result = call()
            calls.append(result)
            return result

        return hook

    function = jax.jit(lambda x, *, y=1.0: x + y)
    watch.watch(function, make)
    yield function, calls, make
    watch.release_all()


def test_a_watched_function(watched):
    """Calls go through the hook, as they came; everything else of the function is as before."""
    function, calls, make = watched
    assert type(function) is type(jax.jit(lambda: None))
    assert function(2.0, y=3.0) == 5.0
    assert calls == ["before", 5.0]
    watch.watch(function, make)    # once is enough
    assert function(2.0) == 3.0 and len(calls) == 4
    with pytest.raises(TypeError, match="unexpected keyword"):
        function(2.0, z=1.0)
    assert calls[4:] == ["before"]
    assert function.lower(1.0).compile()(1.0) == 2.0
    watch.release_all()
    assert function(np.float32(1.0)) == 2.0 and len(calls) == 5
    watch.watch(abs, make)    # no jitted function: nothing happens
    assert abs(-1) == 1


def test_calls_inside_of_a_counted_one(watched):
    """They do without the hook, on that thread alone; one that asks for all calls gets them."""
    function, calls, make = watched
    always, elsewhere = jax.jit(lambda x: x + 3), []
    watch.watch(always, make, always=True)
    assert watch.enter() and not watch.enter()
    try:
        assert function(1.0) == 2.0 and calls == []
        with pytest.raises(TypeError, match="unexpected keyword"):
            function(2.0, z=1.0)
        thread = threading.Thread(target=lambda: elsewhere.append((watch.enter(), function(2.0))))
        thread.start()
        thread.join()
        assert elsewhere == [(True, 3.0)] and calls == []
        assert always(1.0) == 4.0 and calls == ["before", 4.0]
    finally:
        watch.leave()
    assert function(1.0) == 2.0 and len(calls) == 4


def test_a_call_is_made_while_it_lasts():
    """What the hook was given cannot be called later."""
    kept, function = [], jax.jit(lambda x: x + 1)
    watch.watch(function, lambda _: lambda call: kept.append(call) or call())
    try:
        assert function(1.0) == 2.0
        with pytest.raises(RuntimeError, match="the call is over"):
            kept[0]()
    finally:
        watch.release_all()


def test_a_watched_function_dies(watched):
    """Watching keeps nothing alive."""
    import gc
    import weakref

    function = jax.jit(lambda x: x)
    watch.watch(function, watched[2])
    gone = weakref.ref(function)
    del function
    gc.collect()
    assert gone() is None


def test_counts_of_a_call():
    """The name of what one call was counted as."""
    import jaxmarshal

    mark = watch.Mark("device_put")
    assert mark.ending() == ""
    jaxmarshal.device_put(1.0, donate=True)
    assert mark.ending() == "options"
    jaxmarshal.device_put(1.0)
    mark = watch.Mark("device_put")
    jaxmarshal.device_put(1.0)
    assert mark.ending() == "hit"
