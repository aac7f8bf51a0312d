"""A JAX that lacks a private name: nothing fails, and what needs the name stays JAX's own."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
from child import run_code

import jaxmarshal
from jaxmarshal._jax import patching, private

#: Every (module, name) that the gateway asks JAX for.
LOOKUPS = re.findall(r'_lookup\(\s*"([\w.]+)",\s*"([\w.]+)"\)', inspect.getsource(private))

#: Those that are asked for with other versions only.
OF_OTHERS = ["trace_state" if private.HOLDS_TRACES else "trace_state_strong_ref"]

WITHOUT = """
    import importlib, json
    import jax, numpy as np

    module, _, name = {name!r}.rpartition(".")
    module = importlib.import_module(module)
    original, saved = jax.device_put, getattr(module, name)
    delattr(module, name)
    import jaxmarshal
    setattr(module, name, saved)    # JAX itself needs it

    from jaxmarshal._jax import patching, private
    from jaxmarshal._reports import doctor
    from jax._src import xla_bridge
    assert not xla_bridge.backends_are_initialized()
    assert list(private.missing) == [{name!r}], private.missing
    for _ in range(2):
        result = jaxmarshal.device_put({{"a": np.arange(3.0), "b": (1, None)}}, jax.devices()[0])
        assert np.array_equal(result["a"], np.arange(3.0)) and result["b"][0].committed
    counts = jaxmarshal.stats()["device_put"]
    jaxmarshal.install()
    facts = doctor.examine()
    print(json.dumps({{
        "active": sorted(e.name for e in patching.ENTRY_POINTS if e.active),
        "installed": sorted(patching.installed_names()),
        "patched": jax.device_put is not original,
        "counts": counts,
        "missing": facts["missing_names"],
        "report": doctor.report(facts),
    }}))
"""

NEEDED_BY_ALL = [
    "jax._src.config.trace_context",
    "jaxlib._jax.batched_device_put",
    "jax._src.array.ArrayImpl",
]


def without(name):
    return json.loads(run_code(WITHOUT.format(name=name)).stdout.splitlines()[-1])


def test_the_installed_version_lacks_nothing():
    """On the supported versions every name is there and every capability is on."""
    assert len(LOOKUPS) == inspect.getsource(private).count("= _lookup(") > 30
    assert private.missing == {}
    flags = {name: value for name, value in vars(private).items() if name.startswith("HAVE_")}
    assert len(flags) >= 5
    assert all(flags.values())
    assert private.why_not_supported() is None


@pytest.mark.parametrize("name", NEEDED_BY_ALL)
def test_without_a_name_that_all_need(name):
    """Import and calls work, the entry points are JAX's, and doctor and the counts say so."""
    found = without(name)
    assert found["active"] == found["installed"] == []
    assert not found["patched"]
    assert found["counts"] == {"hits": 0, "misses": 2, "misses_by_reason": {"unsupported": 2}}
    assert list(found["missing"]) == [name]
    assert f"missing names\n  {name}: " in found["report"]
    assert found["report"].count(f"inactive: JAX lacks {name}\n") == len(patching.ENTRY_POINTS)
    assert "device_put               0 hits, 2 misses, 2 unsupported" in found["report"]


def test_without_a_whole_module():
    """Older versions lack some, and newer ones may; the import works all the same."""
    done = run_code("""
        import importlib
        import jax
        real = importlib.import_module

        def without(name):
            if name in ("jax._src.random.prng", "jax._src.prng", "jax._src.mesh"):
                raise ModuleNotFoundError(name)
            return real(name)

        importlib.import_module = without
        import jaxmarshal
        importlib.import_module = real
        from jaxmarshal._jax import private
        assert private.prng_impls == ()
        jaxmarshal.install()
        for _ in range(2):
            assert jax.device_put(1.0) + 1 == 2
        print(sorted(private.missing))
        """)
    assert "jax._src.mesh" in done.stdout


def test_without_one_entry_point():
    """What does not need the name is accelerated all the same."""
    found = without("jax._src.dispatch.batched_device_put_impl")
    assert "batched_device_put_impl" not in found["active"]
    assert "device_put" in found["active"] and found["active"] == found["installed"]
    assert found["patched"]
    assert found["counts"]["hits"] == 1
    lines = [line.split(maxsplit=1) for line in found["report"].splitlines()]
    lacks = "inactive: JAX lacks jax._src.dispatch.batched_device_put_impl"
    assert [name for name, *status in lines if status == [lacks]] == ["batched_device_put_impl"]


@pytest.mark.parametrize(
    ("name", "entry_points"),
    [
        ("jax._src.interpreters.pxla.ResultsHandler.__call__", {"results_handler_call"}),
        ("jax._src.interpreters.pxla.batched_device_put", {"batched_device_put"}),
        (
            "jax._src.stages.Compiled.__call__",
            {
                "compiled_call", "mesh_executable_call", "execute_replicated_call",
                "results_handler_call",
            },
        ),
    ],
)
def test_doctor_says_who_lacks_what(name, entry_points):
    """Each entry point without which a name cannot do says so; the others are active."""
    module, _, rest = name.rpartition(".pxla.") if ".pxla." in name else name.rpartition(".stages.")
    done = run_code(
        f"""
        import jax._src.interpreters.pxla, jax._src.stages
        from jax._src import stages
        from jax._src.interpreters import pxla
        import importlib
        real = importlib.import_module

        class Without:
            def __init__(self, module):
                self.module = module

            def __getattr__(self, attribute):
                if attribute == {rest.partition(".")[0]!r}:
                    raise AttributeError(attribute)
                return getattr(self.module, attribute)

        importlib.import_module = lambda module: (
            Without(real(module)) if module in {(f"{module}.pxla", f"{module}.stages")!r}
            else real(module)
        )
        import jaxmarshal
        from jaxmarshal._reports import doctor
        importlib.import_module = real
        facts = doctor.examine()
        for name, state in facts["entry_points"].items():
            assert state["active"] == (not state["lacks"]), (name, state)
            if state["lacks"]:
                print(name, *state["lacks"])
        """
    )
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert {entry for entry, _ in lines} >= entry_points
    assert all(name in lacks for entry, lacks in lines if entry in entry_points)


#: Sets a field that no JAX has today, and the entry points that are JAX's then.
NEW_FIELDS = {
    "jax._src.interpreters.pxla.ExecuteReplicated": (
        "pxla.ExecuteReplicated.__slots__ += ['has_new_effects']", "execute_replicated_call",
    ),
    "jax._src.interpreters.pxla.InputsHandler": (
        "pxla.InputsHandler.__slots__ += ('has_new_effects',)", "compiled_call",
    ),
    "jax._src.interpreters.pxla.ResultsHandler": (
        "pxla.ResultsHandler.__slots__ += ('has_new_effects',)", "compiled_call",
    ),
    "jax._src.stages.Compiled": ("stages.Compiled.__slots__ += ['new']", "compiled_call"),
    "jax._src.interpreters.pxla.MeshExecutableFastpathData": (
        "pxla.MeshExecutableFastpathData._fields += ('new',)", "jit",
    ),
    "jax.jit": (
        "state = jax.numpy.sin.__getstate__(); "
        "jax.numpy.sin = type('F', (), {'__getstate__': lambda self: {**state, 'new': 1}})()",
        "jit",
    ),
    "jax._src.core.Primitive": ("core.Primitive.new = False", "bind"),
}  # fmt: skip


@pytest.mark.parametrize("name", NEW_FIELDS)
def test_a_field_that_nobody_knows(name):
    """It may be a new effect: what is made of such an object is left to JAX, and doctor says so."""
    assert set(NEW_FIELDS) == set(private.EXPECTED_FIELDS)
    change, entry_point = NEW_FIELDS[name]
    found = json.loads(run_code(f"""
        import json
        import jax
        from jax._src import core, stages
        from jax._src.interpreters import pxla
        {change}
        import jaxmarshal
        from jaxmarshal._jax import patching, private
        from jaxmarshal._reports import doctor
        jaxmarshal.install()
        for _ in range(2):
            assert jax.jit(lambda x: x + 1)(1.0) == 2
            assert jax.device_put(1.0) == 1
        facts = doctor.examine()
        print(json.dumps({{
            "unknown": private.unknown_fields,
            "missing": facts["missing_names"],
            "lacks": {{name: s["lacks"] for name, s in facts["entry_points"].items()}},
            "hits": jaxmarshal.stats()["device_put"]["hits"],
        }}))
        """).stdout.splitlines()[-1])
    (fields,) = found["unknown"].values()
    assert list(found["unknown"]) == [name] and fields[0] in ("has_new_effects", "new")
    assert found["missing"] == {f"{name} as it was": f"unknown fields: {fields[0]}"}
    assert found["lacks"][entry_point] == [f"{name} as it was"]
    assert found["lacks"]["device_put"] == [] and found["hits"] == 1


def test_without_the_layout_probe():
    """Arrays are read through public attributes where the layout cannot be looked for."""
    found = without("jaxlib._jax.guard_lib.thread_local_state")
    assert found["patched"] and found["counts"]["hits"] == 1
    assert found["report"].count(" public attribute\n") == 7


EACH = """
    import importlib, os, sys
    import jax, numpy as np

    failed = []
    for module, name in {lookups!r}:
        owner, top = importlib.import_module(module), name.partition(".")[0]
        if name in {others!r}:
            assert not hasattr(owner, name)
            continue
        if os.fork() == 0:
            try:
                saved = getattr(owner, top)
                delattr(owner, top)
                import jaxmarshal
                setattr(owner, top, saved)
                assert f"{{module}}.{{name}}" in jaxmarshal._jax.private.missing
                jaxmarshal.install()
                for _ in range(2):
                    result = jax.device_put([np.arange(3.0), 1, jax.numpy.zeros(2)])
                    assert np.array_equal(result[0], np.arange(3.0)) and result[1] == 1
            except BaseException as error:
                print(module, name, repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        if os.wait()[1]:
            failed.append((module, name))
    assert not failed, failed
"""


@pytest.mark.slow
@pytest.mark.one_version
def test_without_any_one_name():
    """Whichever name is missing: the import works, and so do calls with jaxmarshal installed."""
    run_code(EACH.format(lookups=LOOKUPS, others=OF_OTHERS), XLA_FLAGS=None)


def test_only_the_gateway_names_private_parts_of_jax():
    """A rename in JAX is one line to change."""
    package = Path(jaxmarshal.__file__).parent
    private = re.compile(r"^\s*(from|import) (jax\._src|jaxlib)", re.MULTILINE)
    sources = [path for pattern in ("*.py", "*.pyx") for path in package.rglob(pattern)]
    assert len(sources) > 5
    assert [path.name for path in sources if private.search(path.read_text())] == ["private.py"]


ANY_VERSION = """
    import json, os, jax
    {change}
    import jaxmarshal
    from jaxmarshal._jax import patching, private
    for _ in range(2):
        jaxmarshal.device_put(1.0)
    print(json.dumps([
        private.SUPPORTED, private.why_not_supported(),
        sum(entry.active for entry in patching.ENTRY_POINTS),
        jaxmarshal.stats()["device_put"]["hits"],
    ]))
"""


def test_a_version_outside_of_the_bounds():
    """Nothing is fast there, but where a test asks for it."""
    change = "jax.__version__ = '0.99.0'"
    found = json.loads(run_code(ANY_VERSION.format(change=change)).stdout.splitlines()[-1])
    assert found[0] is False and "0.99.0" in found[1] and found[2:] == [0, 0]
    change += "; os.environ['JAXMARSHAL_TEST_ANY_JAX'] = '1'"
    found = json.loads(run_code(ANY_VERSION.format(change=change)).stdout.splitlines()[-1])
    assert found == [True, None, len(patching.ENTRY_POINTS), 1]
