"""Misses where users of JAX look: the `jaxmarshal` logger and events of `jax.monitoring`."""

from __future__ import annotations

import functools
import logging
import os
import re
import threading

import jax
import numpy as np
import pytest
from child import run_code
from conftest import LAYOUT_OFF
from support import counts

import jaxmarshal
from jaxmarshal._reports import counting
from jaxmarshal.reasons import REASONS


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, "jaxmarshal")
    return caplog


@pytest.fixture
def events():
    """The scalars recorded since the start of the test, as (event, value, entry point)."""
    found = []

    def listen(event, value, **kwargs):
        found.append((event, value, kwargs["entry_point"]))

    jaxmarshal.publish()  # what other tests left
    jax.monitoring.register_scalar_listener(listen)
    yield found
    jax.monitoring.unregister_scalar_listener(listen)


class Handler(logging.Handler):
    """Does something for every record."""

    def __init__(self, action):
        super().__init__(logging.DEBUG)
        self.action = action

    def emit(self, record):
        self.action()


@pytest.fixture
def handler(log):
    """Adds a handler with an action of the test's to the logger."""
    logger = logging.getLogger("jaxmarshal")
    added = []

    def add(action):
        added.append(Handler(action))
        logger.addHandler(added[-1])

    yield add
    for one in added:
        logger.removeHandler(one)


def put_badly():
    return jaxmarshal.device_put(1.0, donate=True)


def test_the_first_miss_is_logged(log):
    """One line for each entry point and reason, with meaning and advice, until a reset."""
    reason = next(reason for reason in REASONS if reason.name == "options")
    for _ in range(3):
        put_badly()
    (record,) = log.records
    assert (record.name, record.levelname) == ("jaxmarshal", "INFO")
    assert record.getMessage() == (
        f"device_put: first miss (options). {reason.meaning} {reason.advice}"
    )
    jaxmarshal.reset_stats()
    put_badly()
    assert len(log.records) == 2


def test_ordinary_misses_are_for_debugging(log):
    """What every program has is not worth a line at INFO."""
    assert {reason.name for reason in REASONS if reason.ordinary} == {
        "not_recorded", "trace", "no_backend"
    }  # fmt: skip
    jaxmarshal.device_put(np.zeros(3))
    jax.jit(jaxmarshal.device_put)(np.zeros(3))
    assert [record.levelname for record in log.records] == ["DEBUG", "DEBUG"]


def test_a_script_of_many_steps(log):
    """A line for each kind of call that misses, none for tracing or what JAX calls inside."""
    x = jax.numpy.ones(3)
    log.set_level(logging.INFO, "jaxmarshal")
    log.clear()
    with jaxmarshal.installed():
        for step in range(20):
            jax.device_put(np.ones(3), donate=True)
            jax.numpy.asarray(range(3))
            jax.jit(lambda x, step=step: jax.numpy.sin(x) + step)(x)
            jax.grad(lambda x: jax.numpy.sum(x * x))(x)
            jax.vmap(jax.numpy.sin)(x)
    lines = [record.getMessage() for record in log.records]
    named = [line.partition(":")[0] for line in lines]
    assert {"device_put", "asarray"} <= set(named) <= {
        "device_put", "asarray", "array", "jit"
    }, lines  # fmt: skip
    assert len(set(lines)) == len(lines) <= 5, lines
    (asarray,) = (line for line in lines if line.startswith("asarray"))
    assert "make long lists numpy arrays" in asarray
    assert not any("racer" in line or "JAX trace" in line for line in lines)


class Steps:
    """With a jitted method."""

    @functools.partial(jax.jit, static_argnums=0)
    def go(self, x):
        return x * 2


@pytest.mark.skipif(LAYOUT_OFF, reason="no plan is made without words")
def test_jitted_functions_are_named(log):
    """Each with its place, and each kind of call once, however often the counts start anew."""
    def add(x):
        return x + 1

    f, steps, table = jax.jit(add), Steps(), {"f": jax.jit(lambda x: x)}
    x = np.ones(10_000, np.float32)    # too long to be copied
    log.set_level(logging.INFO, "jaxmarshal")
    log.clear()
    with jaxmarshal.installed():
        for _ in range(3):
            for call in (
                lambda: f(x), lambda: f(
                    x,
                ), lambda: steps.go(x), lambda: jax.numpy.dot(x, x), lambda: table["f"](x),
            ):  # fmt: skip
                jaxmarshal.reset_stats()
                call()
    lines = [record.getMessage() for record in log.records]
    assert all(line.startswith("jit: first miss (host_leaves) of ") for line in lines), lines
    named = [line.partition(" of ")[2].partition(". ")[0] for line in lines]
    file, first = __file__.removeprefix(os.getcwd() + os.sep), add.__code__.co_firstlineno
    method = Steps.go.__wrapped__.__code__.co_firstlineno
    name = test_jitted_functions_are_named.__name__
    assert named[:2] == [
        f"{name}.<locals>.add, defined at {file}:{first}",
        f"Steps.go, defined at {file}:{method}",
    ]
    assert [re.sub(r"\d+$", "", line) for line in named[2:]] == [
        f"jax.numpy.dot, called at {file}:", f"table['f'], called at {file}:",
    ]  # fmt: skip


@pytest.mark.skipif(LAYOUT_OFF, reason="no plan is made without words")
def test_a_place_without_source(log):
    """What nobody can read is called somewhere all the same."""
    f = jax.jit(lambda x: x + 1)
    with jaxmarshal.installed():
        exec("f(x)", {"f": f, "x": np.ones(10_000, np.float32)})
    (line,) = [r.getMessage() for r in log.records if r.levelname == "INFO"]
    assert line.startswith("jit: first miss (host_leaves), called at <string>:1. ")


@pytest.mark.skipif(LAYOUT_OFF, reason="no plan is made without words")
def test_a_compiled_call_is_logged(log):
    """Other entry points log under their own names."""
    compiled = jax.jit(lambda x: x + 1).lower(np.zeros(3, np.float32)).compile()
    with jaxmarshal.installed("compiled_call"), jax.debug_nans(True):
        compiled(np.zeros(3, np.float32))
    (record,) = log.records
    assert record.getMessage().startswith("compiled_call: first miss (hook). ")


@pytest.mark.parametrize("options", [{}, {"donate": True}], ids=["late", "early"])
def test_a_handler_that_fails(handler, options):
    """An error in a handler does not reach the call, whose result is the reference's."""

    def fail():
        raise ValueError("a broken handler")

    handler(fail)
    assert jaxmarshal.device_put(2.0, **options) == 2.0
    assert counts()[0] == 0


def test_an_interrupt_in_a_handler(handler):
    """What is no error, such as Ctrl-C, is not held back."""

    def interrupt():
        raise KeyboardInterrupt

    handler(interrupt)
    with pytest.raises(KeyboardInterrupt):
        put_badly()
    assert put_badly() == 1.0


def test_a_handler_that_calls_back(handler, log):
    """A handler may put arrays itself, and miss: counted, but not logged again."""
    results = []
    handler(lambda: results.append(jaxmarshal.device_put({"a": 2.0, "b": np.ones(5)})["a"]))
    for _ in range(3):
        assert jaxmarshal.device_put([np.arange(3.0), (1, None)])[1] == (1, None)
    assert results == [2.0]
    assert len(log.records) == 1
    assert counts() == (2, {"not_recorded": 2})


def test_a_handler_that_starts_anew(handler, log):
    """A handler that resets the counts and calls back does not call itself for ever."""

    def again():
        jaxmarshal.reset_stats()
        jaxmarshal.api.clear()
        put_badly()

    handler(again)
    for _ in range(3):
        put_badly()
    assert len(log.records) == 1
    assert jaxmarshal.device_put(3.0) == jaxmarshal.device_put(3.0) == 3.0


def test_a_handler_that_deletes_the_arguments(handler):
    """Arguments that a handler deletes are deleted for the reference as well."""
    x = jax.numpy.ones(3)
    compiled = jax.jit(lambda x: x + 1).lower(x).compile()
    handler(x.delete)
    with jaxmarshal.installed("compiled_call"):
        with pytest.raises(Exception, match="delete"):
            compiled(x)
        for _ in range(3):
            assert compiled(jax.numpy.ones(3)).tolist() == [2, 2, 2]


def test_handlers_of_other_threads(handler, log):
    """Only the thread that is logging goes without."""

    def elsewhere():
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=jaxmarshal.device_put, args=(jax.random.key(0),))
            thread.start()
            thread.join(0.5)    # it waits for the handler's lock until this one is done

    handler(elsewhere)
    put_badly()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(10)
    messages = " ".join(record.getMessage() for record in log.records)
    assert "(options)" in messages and "(key_array)" in messages


def test_publish(events):
    """Counts since the last time; what did not grow is left out."""
    jaxmarshal.device_put(1.0)
    jaxmarshal.device_put(1.0)
    jaxmarshal.device_put(1.0)
    put_badly()
    assert events == []    # counting records nothing
    jaxmarshal.publish()
    assert events == [
        ("/jaxmarshal/hits", 2, "device_put"),
        ("/jaxmarshal/misses/not_recorded", 1, "device_put"),
        ("/jaxmarshal/misses/options", 1, "device_put"),
    ]
    events.clear()
    jaxmarshal.publish()
    assert events == []
    put_badly()
    jaxmarshal.reset_stats()
    put_badly()
    jaxmarshal.publish()
    assert events == [("/jaxmarshal/misses/options", 2, "device_put")]
    assert counts() == (0, {"options": 1})


def test_a_listener_that_fails(events):
    """Its error is raised, and the other counts are published the next time."""

    def fail(event, value, **kwargs):
        raise ValueError("a broken listener")

    jaxmarshal.device_put(1.0)
    put_badly()
    jax.monitoring.register_scalar_listener(fail)
    try:
        with pytest.raises(ValueError, match="a broken listener"):
            jaxmarshal.publish()
    finally:
        jax.monitoring.unregister_scalar_listener(fail)
    jaxmarshal.publish()
    assert sorted(event for event, _, _ in events) == [
        "/jaxmarshal/misses/not_recorded", "/jaxmarshal/misses/options"
    ]  # fmt: skip


def test_take_knows_its_names():
    """An unknown entry point is an error, not a zero."""
    with pytest.raises(ValueError):
        counting.take("nonsense", 0)


AT_EXIT = """
    import jax
    jax.monitoring.register_scalar_listener(lambda *a, **k: print(*a, *k.values()))
    import jaxmarshal
    for _ in range(3):
        jaxmarshal.device_put(1.0)
"""


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ("1", ["/jaxmarshal/hits 2 device_put", "/jaxmarshal/misses/no_backend 1 device_put"]),
        ("0", []),
        (None, []),
    ],
)
def test_events_at_exit(value, lines):
    """JAXMARSHAL_EVENTS=1 publishes when the process ends."""
    done = run_code(AT_EXIT, JAXMARSHAL_EVENTS=value)
    assert done.stdout.splitlines() == lines
    assert done.stderr == ""
