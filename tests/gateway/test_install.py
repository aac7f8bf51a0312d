"""Patching JAX in place: what is replaced, and that every original comes back."""

from __future__ import annotations

import importlib
import importlib.machinery
import inspect
import logging
import sys
import threading
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from child import run_code

import jaxmarshal
from jaxmarshal._jax import imports, patching, private

ORIGINALS = {entry.name: entry.original for entry in patching.ENTRY_POINTS}
ACCELERATED = {entry.name: entry.accelerated for entry in patching.ENTRY_POINTS}
ALL = set(ORIGINALS)


def places():
    """All places that are patched; imports add some."""
    return [place for entry in patching.ENTRY_POINTS for place in entry.places]


@pytest.fixture(autouse=True)
def imported():
    """JAX imports some of its modules at the first call; here that has happened."""
    jax.device_put(np.zeros(3), jax.devices()[1])


def snapshot():
    """Every attribute of every module of JAX and jaxlib, and what JAX's primitives hold."""
    found = {
        name: dict(vars(module))
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in ("jax", "jaxlib") and isinstance(module, types.ModuleType)
    }
    found["device_put_p"] = dict(vars(private.device_put_primitive))
    for holder in {place.holder for place in places()} - {None}:
        found[holder.__name__] = dict(vars(holder))
    return found


def differences(before, after):
    """The (module, name) of what is not the same object in both."""
    missing = object()
    return {
        (module, name)
        for module in before.keys() | after.keys()
        for name in before.get(module, {}).keys() | after.get(module, {}).keys()
        if before.get(module, {}).get(name, missing) is not after.get(module, {}).get(name, missing)
    }


def holders(wanted):
    """Where an object is held."""
    return {
        (module, name)
        for module, names in snapshot().items()
        for name, value in names.items()
        if value is wanted
    }


def test_install_replaces_every_reference():
    """Wherever a module of JAX held the original, it holds the accelerated function."""
    held = {name: holders(original) for name, original in ORIGINALS.items()}
    assert {("jax", "device_put"), ("jax._src.api", "device_put")} <= held["device_put"]
    assert {("jax._src.dispatch", "batched_device_put_impl"), ("device_put_p", "impl")} == held[
        "batched_device_put_impl"
    ]
    jaxmarshal.install()
    for name in ALL:
        assert holders(ORIGINALS[name]) == set()
        assert holders(ACCELERATED[name]) == held[name]
    assert jax.device_put is jaxmarshal.device_put


def test_install_changes_nothing_else():
    """Nothing but the entry points differs while installed."""
    before = snapshot()
    functions = [place.original for place in places() if place.holder is None]
    functions.append(private.fastpath_data)    # noted while jitted functions are accelerated
    classes = {place.holder.__name__ for place in places() if place.holder}
    expected = {held for held in set().union(*map(holders, functions)) if held[0] not in classes}
    expected |= {(place.holder.__name__, place.attribute) for place in places() if place.holder}
    jaxmarshal.install()
    assert differences(before, snapshot()) == expected


@pytest.mark.parametrize(
    "only", [None, *sorted(ALL), [], sorted(ALL), tuple(sorted(ALL))], ids=repr
)
def test_uninstall_restores_everything(only):
    """After `uninstall()` each attribute of each module is the object that it was."""
    before = snapshot()
    jaxmarshal.install(only)
    jaxmarshal.device_put(np.zeros(3))
    jaxmarshal.uninstall()
    assert differences(before, snapshot()) == set()


def test_idempotent():
    """Twice is the same as once, in both directions and in any order."""
    before = snapshot()
    jaxmarshal.uninstall()
    jaxmarshal.install()
    once = snapshot()
    jaxmarshal.install()
    jaxmarshal.install("device_put")
    assert differences(once, snapshot()) == set()
    jaxmarshal.uninstall()
    jaxmarshal.uninstall()
    assert differences(before, snapshot()) == set()


@pytest.mark.parametrize("name", sorted(ALL))
def test_only(name):
    """One entry point alone; others can be added later, and a string is one name."""
    for only in (name, [name], iter((name,))):
        jaxmarshal.install(only)
        assert patching.installed_names() == {name}
        assert holders(ORIGINALS[name]) == set()
        assert all(holders(ORIGINALS[other]) for other in ALL - {name})
        jaxmarshal.uninstall()
    jaxmarshal.install(name)
    jaxmarshal.install()
    assert patching.installed_names() == ALL


@pytest.mark.parametrize("only", ["nonsense", ["device_put", "nonsense"]], ids=repr)
@pytest.mark.parametrize("how", ["install", "installed"])
def test_unknown_names(only, how):
    """The error names what is unknown and what there is; nothing is changed."""
    before = snapshot()
    with pytest.raises(ValueError, match=r"'nonsense'.*'device_put'"):
        if how == "install":
            jaxmarshal.install(only)
        else:
            with jaxmarshal.installed(only):
                pass
    assert differences(before, snapshot()) == set()


def test_calls_go_through_what_is_installed():
    """Programs that call JAX get the fast path, and JAX's own calls of its primitive do too."""
    data = np.arange(3, dtype=np.float32)
    with jaxmarshal.installed():
        first, second = jax.device_put(data), jax.device_put(data)
        assert jaxmarshal.stats()["device_put"]["hits"] == 1
        p = private.device_put_primitive
        keywords = {
            "devices": (jax.devices()[1],), "srcs": (None,),
            "copy_semantics": (jax._src.dispatch.ArrayCopySemantics.REUSE_INPUT,),
        }  # fmt: skip
        for _ in range(2):
            (third,) = p.bind(first, **keywords)
        assert jaxmarshal.stats()["batched_device_put_impl"]["hits"] == 1
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, third)
    jaxmarshal.reset_stats()
    jax.device_put(data)
    assert jaxmarshal.stats()["device_put"] == {"hits": 0, "misses": 0, "misses_by_reason": {}}


def test_nested_contexts():
    """Each context restores what was installed when it was entered."""
    before = snapshot()
    with jaxmarshal.installed("device_put"):
        with jaxmarshal.installed("device_put"), jaxmarshal.installed():
            assert patching.installed_names() == ALL
        assert patching.installed_names() == {"device_put"}
        with jaxmarshal.installed("batched_device_put_impl"):
            assert patching.installed_names() == {"device_put", "batched_device_put_impl"}
        assert patching.installed_names() == {"device_put"}
    assert differences(before, snapshot()) == set()


def test_a_context_inside_an_installation():
    """What was installed before stays so; what was not is restored."""
    jaxmarshal.install("device_put")
    with jaxmarshal.installed():
        assert patching.installed_names() == ALL
        jaxmarshal.uninstall()
        assert patching.installed_names() == set()
    assert patching.installed_names() == {"device_put"}
    jaxmarshal.uninstall()
    with jaxmarshal.installed("device_put"):
        jaxmarshal.install()
    assert patching.installed_names() == set()


def test_an_exception_inside_a_context():
    """It arrives unchanged, and everything is restored."""
    before = snapshot()
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught, jaxmarshal.installed():
        raise error
    assert caught.value is error
    assert differences(before, snapshot()) == set()


def test_contexts_of_two_threads_overlap():
    """The first to enter may be the first to leave: the other is still served, then all is back."""
    before = snapshot()
    entered, leave = threading.Event(), threading.Event()
    seen = []

    def other():
        with jaxmarshal.installed():
            entered.set()
            leave.wait(60)
            seen.append(patching.installed_names())

    with jaxmarshal.installed("device_put"):
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(60)
    leave.set()
    thread.join()
    assert seen == [ALL]
    assert differences(before, snapshot()) == set()


def test_threads_that_install_and_call():
    """Calls are right while other threads install and uninstall; then everything is restored."""
    data = np.arange(4, dtype=np.float32)
    jax.device_put({"a": data})    # for which JAX imports modules the first time
    before = snapshot()
    failures, stop = [], threading.Event()

    def guarded(body):
        try:
            while not stop.is_set():
                body()
        except BaseException as error:
            failures.append(error)

    def call():
        np.testing.assert_array_equal(jax.device_put({"a": data})["a"], data)

    def toggle():
        with jaxmarshal.installed():
            jax.device_put(data)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in (call, toggle, toggle)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        jaxmarshal.install("device_put")
        jaxmarshal.uninstall()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    jaxmarshal.uninstall()
    assert differences(before, snapshot()) == set()


OFTEN = """
import operator

import jax
import jaxmarshal

x = jax.numpy.arange(12.0).reshape(3, 4)


def first(x):
    return x[0]    # Python specializes this one


def hits(call):
    for _ in range(30):
        call(x)
    jaxmarshal.reset_stats()
    call(x)
    return jaxmarshal.stats()["getitem"]["hits"]


def looked_at():
    return x.shape    # gives the class of arrays a version, of which Python has a thousand


for _ in range(600):
    with jaxmarshal.installed():
        looked_at()
    looked_at()
first(x)
result = []
for _ in range(2):
    with jaxmarshal.installed():
        result.append([hits(first), hits(lambda x: operator.getitem(x, 0))])
    result.append([hits(first)])
"""


def test_installed_often(fresh):
    """`x[i]` is found anew in code of which Python remembers what it called."""
    assert fresh(OFTEN) == [[1, 1], [0], [1, 1], [0]]


def test_modules_imported_while_installed():
    """A module of JAX that copied the accelerated function gets the original as well."""
    name = "jax._src.a_module_of_this_test"
    module = types.ModuleType(name)
    with jaxmarshal.installed():
        exec("from jax import device_put as put", vars(module))
        sys.modules[name] = module
        assert module.put is jaxmarshal.device_put
    try:
        assert module.put is jax.device_put is ORIGINALS["device_put"]
        with jaxmarshal.installed():
            assert module.put is jaxmarshal.device_put
    finally:
        del sys.modules[name]


def test_a_real_module_imported_while_installed():
    """Modules of JAX that are imported late find the original after `uninstall()`."""
    run_code(
        """
        import importlib, sys
        import jaxmarshal
        from jaxmarshal._jax import patching

        late = [
            name for name in ("jax.experimental.sparse", "jax.experimental.array_serialization",
                              "jax.example_libraries.optimizers", "jax.experimental.jet")
            if name not in sys.modules
        ]
        assert late
        jaxmarshal.install()
        for name in late:
            try:
                importlib.import_module(name)
            except ImportError:
                pass
        jaxmarshal.uninstall()
        for name, module in list(sys.modules.items()):
            if name.startswith("jax."):
                for entry in patching.ENTRY_POINTS:
                    assert not any(v is entry.accelerated for v in vars(module).values()), name
        """
    )


def test_what_others_keep():
    """Names that a program bound itself are the program's: they stay what they were."""
    with jaxmarshal.installed():
        kept = jax.device_put
    assert kept is jaxmarshal.device_put
    original = jax.device_put
    with jaxmarshal.installed():
        assert original is ORIGINALS["device_put"]


@pytest.mark.parametrize("value", ["off", "OFF", "0", "false"])
def test_the_switch(value, monkeypatch, caplog):
    """JAXMARSHAL=off makes `install()` and `installed()` do nothing, and say so in one line."""
    monkeypatch.setenv("JAXMARSHAL", value)
    before = snapshot()
    with caplog.at_level(logging.INFO, "jaxmarshal"):
        jaxmarshal.install()
    assert [record.getMessage() for record in caplog.records] == [
        "JAXMARSHAL=off: jaxmarshal is not installed"
    ]
    assert caplog.records[0].levelno == logging.WARNING
    with jaxmarshal.installed():
        assert differences(before, snapshot()) == set()
    with pytest.raises(ValueError, match="nonsense"):
        jaxmarshal.install("nonsense")
    jaxmarshal.uninstall()
    assert differences(before, snapshot()) == set()


@pytest.mark.parametrize("value", ["on", "1", ""])
def test_the_switch_is_on_otherwise(value, monkeypatch, caplog):
    """Other values change nothing."""
    monkeypatch.setenv("JAXMARSHAL", value)
    jaxmarshal.install()
    assert patching.installed_names() == ALL
    assert caplog.records == []


AUTO = """
    import jax
    original = jax.device_put
    import jaxmarshal.auto
    from jax._src import xla_bridge
    print("installed" if jax.device_put is jaxmarshal.device_put else "not installed")
    assert not xla_bridge.backends_are_initialized()
    jaxmarshal.uninstall()
    assert jax.device_put is original
"""


@pytest.mark.parametrize(
    ("switch", "line", "log"),
    [(None, "installed", ""), ("off", "not installed", "JAXMARSHAL=off")],
    ids=["on", "off"],
)
def test_auto(switch, line, log):
    """`import jaxmarshal.auto` installs, unless it is switched off; it starts no backend."""
    done = run_code(AUTO, JAXMARSHAL=switch)
    assert done.stdout.strip() == line
    assert done.stderr.count(log) == 1 if log else done.stderr == ""


def test_auto_installs_once():
    """A second import does nothing, as with every module."""
    importlib.import_module("jaxmarshal.auto")
    jaxmarshal.uninstall()
    importlib.import_module("jaxmarshal.auto")
    assert patching.installed_names() == set()


@pytest.mark.parametrize("name", [entry.name for entry in patching.ENTRY_POINTS if entry.active])
def test_what_stands_in_has_the_attributes_of_the_original(name):
    """Caches are cleared and counted through it; methods show the same name and signature."""
    (entry,) = [entry for entry in patching.ENTRY_POINTS if entry.name == name]
    public = {n for n in dir(entry.original) if not n.startswith("_")}
    assert public <= set(dir(entry.accelerated))
    assert isinstance(entry.accelerated, Callable)    # by its class, as checkers of types ask
    if entry.holder is not None:
        assert inspect.signature(entry.accelerated) == inspect.signature(entry.original)
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            found = getattr(entry.accelerated, attribute)
            assert found == getattr(entry.original, attribute), attribute


def test_the_cache_of_primitives_counts():
    """`cache_info` and `cache_clear` of `xla_primitive_callable` are the reference's."""
    from jax._src import dispatch

    with jaxmarshal.installed():
        before = dispatch.xla_primitive_callable.cache_info().misses
        jax.lax.sinh(jnp.ones(7))
        jax.lax.sinh(jnp.ones(7))
        assert dispatch.xla_primitive_callable.cache_info().misses > before
        dispatch.xla_primitive_callable.cache_clear()
        assert dispatch.xla_primitive_callable.cache_info().currsize == 0
        assert float(jax.lax.sinh(jnp.ones(7))[0]) == float(np.float32(np.sinh(1.0)))


WAITS = """
from jaxmarshal._jax import imports
if __name__ == "waits":
    for number in range(2):
        imports.when_imported("waits", lambda number=number: DONE.append(number))
    DONE = []
    assert not imports.is_imported("waits")
"""


@pytest.mark.parametrize("begun", [True, False])
def test_two_things_wait_for_an_import(tmp_path, monkeypatch, begun):
    """Whether it has begun or not; afterwards the module's spec and loader are Python's own."""
    (tmp_path / "waits.py").write_text(WAITS if begun else "")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "waits", raising=False)
    done = []
    if not begun:
        for number in range(2):
            imports.when_imported("waits", lambda number=number: done.append(number))
    module = importlib.import_module("waits")
    assert (module.DONE if begun else done) == [0, 1]
    assert type(module.__spec__) is importlib.machinery.ModuleSpec
    assert "actions" not in vars(module.__spec__)
    assert "exec_module" not in vars(module.__loader__)
    assert imports.is_imported("waits")
