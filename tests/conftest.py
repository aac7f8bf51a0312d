"""Eight CPU devices for every test, clean counts before each, hypothesis profiles."""

from __future__ import annotations

import collections
import ctypes
import gc
import os
import re
import traceback
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# How well XLA compiles is not under test, and takes half of the time.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)
if version("jaxlib").startswith("0.10."):    # others do not know it, and end the process
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"

import hypothesis
import jax
import numpy as np
import pytest
from jaxlib._jax import PjitFunctionCache
from observe import SEEN, NothingCompared
from support import Fresh, free_stack

import jaxmarshal
from jaxmarshal._core.plans import host_leaves
from jaxmarshal._core.replay import fusion
from jaxmarshal._core.values import array_words
from jaxmarshal._jax import private

hypothesis.settings.register_profile(
    "quick", max_examples=300, deadline=None, derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.register_profile(
    "ci", max_examples=1000, deadline=None, derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile(os.environ.get("JAXMARSHAL_TEST_PROFILE", "quick"))

#: How many devices the tests name; an accelerator may have fewer.
DEVICES = 8
HERE = Path(__file__).parent

#: Is the object layout switched off, so that the readers use public attributes?
LAYOUT_OFF = os.environ.get("JAXMARSHAL_OBJECT_LAYOUT", "").lower() in ("off", "0", "false")

#: Modules whose tests say which calls of compiled code are fast. None is where arrays cannot be
#: compared by their words: what happens there instead is in `test_stepping_aside.py`.
ABOUT_PLANS = frozenset((
    "test_compat_execution", "test_eager_replaced", "test_eager_traps", "test_end_of_stack",
    "test_execute_calls", "test_execute_traps", "test_explain", "test_explain_functions",
    "test_filter_jit", "test_front_equinox", "test_fusion", "test_jit_arguments", "test_jit_calls",
    "test_jit_guard", "test_jit_in_place", "test_jit_lifetime", "test_jit_placement",
    "test_jit_protocol", "test_jit_static", "test_plan_traps", "test_user_code",
))  # fmt: skip


#: Modules that take long: one of so many of their tests is in the short run of the whole suite,
#: others for each JAX. All are in the matrix, with one JAX.
SAMPLED = {
    "test_activation": 4, "test_balance": 2, "test_cli": 3, "test_control_flow": 4,
    "test_device_get": 3, "test_device_put_lifetime": 2, "test_device_put_options": 3,
    "test_eager_differential": 2, "test_eager_lifetime": 3, "test_eager_objects": 3,
    "test_eager_replaced": 3, "test_eager_traps": 3, "test_every_function": 2,
    "test_execute_traps": 2, "test_explain_agrees": 2, "test_front_equinox": 2,
    "test_front_nnx": 4, "test_functions": 3, "test_fusion": 3, "test_host_data": 2,
    "test_host_indices": 5, "test_host_sources": 10, "test_index": 4, "test_install": 3,
    "test_jit_arguments": 2, "test_jit_calls": 2, "test_jit_guard": 2, "test_jit_in_place": 3,
    "test_jit_static": 3, "test_late_functions": 3, "test_meshes": 5, "test_operators": 10,
    "test_packing": 3, "test_packing_chunks": 2, "test_packing_placement": 3,
    "test_pytest_plugin": 3, "test_reference": 3, "test_run": 5, "test_scalar_reads": 5,
    "test_shown_attributes": 4, "test_signatures": 3, "test_staging": 3, "test_user_code": 4,
}  # fmt: skip
#: With JAX 0.10 everything runs, and with the newest one the whole short suite. These versions run
#: every third test of other modules, and all of them together: by minor version, which of three.
#: Of modules that take long they run half of what a short run does, and so does JAXMARSHAL_SAMPLE.
THIRDS = {8: 0, 9: 1, 11: 2}
MINOR = int(version("jax").split(".")[1])
SAMPLE = "JAXMARSHAL_SAMPLE" in os.environ


def one_of(module: str) -> int:
    """Of how many tests of a module is one in the short run with this JAX?"""
    if module in SAMPLED:
        return 2 * SAMPLED[module] if MINOR in THIRDS or SAMPLE else SAMPLED[module]
    return 3 if MINOR in THIRDS else 1


@pytest.fixture(scope="session")
def callbacks():
    """For tests of computations that call Python: not every backend can."""
    shape = jax.ShapeDtypeStruct((), "float32")
    try:
        jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(np.asarray, shape, x))(1.0))
    except jax.errors.JaxRuntimeError as error:
        private.runtime_tokens.clear()    # or JAX raises it once more at the next barrier
        pytest.skip(f"NOT DONE: computations here cannot call Python: {error}"[:120])


#: How the docstring of a test says which trap it is about.
ABOUT_TRAP = re.compile(r"Trap (\d+): ")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark what the short run leaves out, and traps; skip what is about plans where none is made.

    Who names a file wants all of it. With JAXMARSHAL_SAMPLE the run is short all the same, and a
    third of the slow tests are in it.
    """
    whole = SAMPLE or all(map(os.path.isdir, config.args))
    met = collections.Counter()
    for item in items:
        module = item.path.stem
        slow = item.get_closest_marker("slow") is not None
        every = one_of(module) if not slow else 3 if SAMPLE else 1
        if whole and every > 1:
            place = (met[module] + THIRDS.get(MINOR, MINOR)) % every
            if place:
                item.add_marker(pytest.mark.rest)
            if place > 1 and place % 2 == 0:
                item.add_marker(pytest.mark.seldom)
            met[module] += 1
        about = ABOUT_TRAP.match(item.obj.__doc__ or "")
        if about:
            item.add_marker(pytest.mark.trap(n=int(about[1])))
        if LAYOUT_OFF and module in ABOUT_PLANS:
            item.add_marker(pytest.mark.skip(reason="no plan is made without object layout"))


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """Leave what earlier modules made, here and in JAX, out of the many collections in tests."""
    jax.local_devices()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def first_free_stack():
    """How deep calls could go from the first test's fixtures."""
    return free_stack()


@pytest.fixture(autouse=True)
def whole_stack(first_free_stack):
    """Give back what earlier tests cost: jaxlib loses some depth whenever flattening fails."""
    for _ in range(first_free_stack - free_stack()):
        # Not by a higher limit: Hypothesis sets its own, and counts only the frames that it sees.
        ctypes.pythonapi.Py_LeaveRecursiveCall()


def clear_jaxlib():
    """Have jaxlib know no signature of a jitted function; JAX's traces and executables stay."""
    PjitFunctionCache.clear_all()


@pytest.fixture(autouse=True)
def clean_state():
    """Each test starts with nothing recorded, nothing counted and nothing installed."""
    jax.local_devices()
    jaxmarshal.uninstall()
    jaxmarshal.api.clear()
    clear_jaxlib()
    jaxmarshal.reset_stats()
    # Host data go through plans beside a few arrays, so that a test needs no hundreds of them.
    weights = host_leaves.weigh_host_leaves(0, 13)
    yield
    host_leaves.weigh_host_leaves(*weights)
    fusion.wait()
    jaxmarshal.uninstall()


#: The property of a test in which calls were compared and none was accelerated.
ALL_SLOW = "nothing was accelerated"


def about_errors(node) -> bool:
    """Is the test marked as one about errors? The mark may name the parameters for which it is."""
    mark = node.get_closest_marker("errors")
    return mark is not None and (not mark.args or any(part in node.name for part in mark.args))


@pytest.fixture(autouse=True)
def something_compared(request):
    """Two equal errors agree about little: one call at least has a result, or is about errors."""
    SEEN.clear()
    yield
    if not SEEN.returned and not SEEN.raised:
        return
    if not SEEN.hits:
        request.node.user_properties.append((ALL_SLOW, request.node.nodeid))
    if not SEEN.returned and not about_errors(request.node):
        pytest.fail(f"all {SEEN.raised} calls were refused: mark it, or mend it", pytrace=False)


def asks_for_more_devices(excinfo) -> bool:
    """Did a test fail for naming a device, or a mesh of devices, that is not there?"""
    if excinfo is None or len(jax.devices()) >= DEVICES:
        return False
    error = excinfo.value
    if isinstance(error, NothingCompared):    # a context that names it
        error = error.__cause__
    if not isinstance(error, (IndexError, ValueError)):
        return False
    found = traceback.extract_tb(error.__traceback__)
    lines = [frame.line or "" for frame in found if Path(frame.filename).is_relative_to(HERE)]
    return bool(lines) and any(word in lines[-1] for word in ("device", "mesh", "Mesh"))


def needs_devices(report) -> None:
    """Turn a failure into a test that was left out, which its summary says."""
    report.outcome = "skipped"
    report.longrepr = (str(report.fspath), None, f"Skipped: NOT DONE: needs {DEVICES} devices")


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report():
    """Leave out a module that names more devices than there are."""
    report = (yield).get_result()
    if report.failed and asks_for_more_devices(report.call.excinfo):
        needs_devices(report)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Where a test fails, say what was counted, and what was found out about arrays."""
    report = (yield).get_result()
    if report.failed and asks_for_more_devices(call.excinfo):
        item.lacked_devices = True
        needs_devices(report)
    elif report.failed and report.when == "teardown" and getattr(item, "lacked_devices", False):
        needs_devices(report)    # nothing was compared
    if report.failed:
        counts = {
            name: (count["hits"], count["misses_by_reason"])
            for name, count in jaxmarshal.stats().items() if count["hits"] or count["misses"]
        }    # fmt: skip
        report.sections.append(("counted", f"{counts}\n{array_words.describe()}"))


def pytest_terminal_summary(terminalreporter):
    """Name the tests that compared calls of which none was accelerated, with `-v`."""
    names = {
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        for key, value in getattr(report, "user_properties", ())
        if key == ALL_SLOW
    }
    if names:
        terminalreporter.write_line(f"nothing was accelerated in {len(names)} tests that compare")
        for name in sorted(names) if terminalreporter.verbosity > 0 else ():
            terminalreporter.write_line(f"  {name}")


@pytest.fixture(params=["jax", "jaxmarshal"])
def device_put(request):
    """The same test body against the reference and against the accelerated function."""
    return jax.device_put if request.param == "jax" else jaxmarshal.device_put


@pytest.fixture
def mesh():
    return jax.sharding.Mesh(jax.devices(), ("x",))


@pytest.fixture(scope="session")
def fresh():
    """Run source in a process without a backend; see `support.Fresh`."""
    server = Fresh()
    yield server
    server.close()
