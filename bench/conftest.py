"""pytest-benchmark over the cases of `jaxmarshal.benchmarks`, a file for each group."""

from __future__ import annotations

import os

import jax
import pytest

from jaxmarshal.benchmarks import suite

suite.force_devices()    # before anything initialises a backend

#: Seconds for the interleaved measurement of a case.
SECONDS = float(os.environ.get("JAXMARSHAL_BENCH_SECONDS", "0.5"))


@pytest.fixture
def run_case(benchmark):
    """Measure the three sides in turns, keep the row, and let pytest-benchmark time jaxmarshal's.

    Where the call does not take the path that the case is about, the test fails.
    """
    from jaxmarshal.benchmarks import measure

    def run(group, case):
        if case.devices > len(jax.devices()):
            pytest.skip(f"NOT MEASURED: {case.name} needs {case.devices} devices")
        benchmark.group = group
        benchmark.extra_info.update(measure.measure(group, case, SECONDS))
        sides = case.build()
        call = sides.jaxmarshal if case.accelerated else sides.reference
        with sides.around("jaxmarshal"):
            benchmark.pedantic(call, rounds=50, iterations=5, warmup_rounds=5)

    return run


def pytest_generate_tests(metafunc):
    """A test for each case of the group that the file names."""
    if "case" in metafunc.fixturenames:
        group = metafunc.module.GROUP
        cases = [case for _, case in suite.select([group])]
        metafunc.parametrize("case", cases, ids=[case.name for case in cases])
