"""Programs of several processes: JAX's own runtime on one machine, collectives through gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from child import PACKAGE_ROOT

from jaxmarshal._jax import private

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "distributed_process.py"
TIMEOUT = 330    # seconds; a process ends itself before

pytestmark = [pytest.mark.slow, pytest.mark.commands, pytest.mark.one_version]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_together(count, folder, *what):
    """(exit status, objects reported, output) of each of `count` processes."""
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAXMARSHAL")}
    environment["PYTHONPATH"] = os.pathsep.join([str(PACKAGE_ROOT), str(HERE.parent / "harness")])
    port = free_port()
    files = [folder / f"{'-'.join(what)}-{number}.json" for number in range(count)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(port), str(count), str(number), str(file), *what],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for number, file in enumerate(files)
    ]
    try:
        # All at once: one that waits for its output to be read keeps the others waiting.
        with ThreadPoolExecutor(count) as readers:
            outputs = list(readers.map(lambda p: p.communicate(timeout=TIMEOUT)[0], processes))
    finally:
        for process in processes:
            process.kill()
    return [
        (
            process.returncode,
            [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else [],
            output,
        )
        for process, file, output in zip(processes, files, outputs, strict=True)
    ]


def reports(count, folder, *what):
    """What each of the processes reports; all of them succeed."""
    done = run_together(count, folder, *what)
    for status, _, output in done:
        assert status == 0, output[-5000:]
    return [reported[-1] for _, reported, _ in done]


@pytest.mark.parametrize("count", [2, 4])
def test_results_are_those_of_jax(count, tmp_path):
    """Placing, jit, ahead-of-time and eager calls with global and local arrays, and errors."""
    for found in reports(count, tmp_path, "compare"):
        assert found["differences"] == []
        assert all(calls > 20 for calls in found["seen"].values())
        stats = found["stats"]
        # Where other processes' devices are the target, those of the reference may have to talk.
        for name, hits in (("device_put", 30), ("shard_args", 30)):
            assert stats[name]["hits"] >= hits, name
        if private.stage_primitive is not None:    # else JAX makes these arrays by other ways
            assert min(stats[name]["hits"] for name in ("asarray", "array")) >= 10
        assert stats["device_put"]["misses_by_reason"]["context"] >= 60
        # Each places its own part of an array: two of three calls that are not errors.
        parts = stats["make_array_from_process_local_data"]
        assert parts["hits"] >= 100
        assert "context" not in parts["misses_by_reason"]
        # Arrays in place need no placing: these calls are fast in each process by itself.
        for name in ("compiled_call", "mesh_executable_call", "execute_replicated_call"):
            assert stats[name]["hits"] >= 2 * 6    # two of three calls for each placement
        assert stats["jit"]["hits"] > 0
        # Unless host data are among the arguments.
        assert stats["compiled_call"]["misses_by_reason"]["context"] > 0
        assert stats["mesh_executable_call"]["misses_by_reason"]["context"] > 0


def test_a_fast_call_and_one_of_jax_are_partners(tmp_path):
    """The processes with jaxmarshal and those without compute together."""
    found = reports(2, tmp_path, "mixed")
    assert found[0]["total"] == found[1]["total"] != 0
    hits = [process["stats"]["compiled_call"]["hits"] for process in found]
    assert hits == [0, 19]


@pytest.mark.parametrize("count", [2, 4])
def test_packing(count, tmp_path):
    """The same leaves travel together in each process, and stay where and what they were."""
    found = reports(count, tmp_path, "packing")
    for process in found:
        assert process["differences"] == []
        assert process["groups"] == found[0]["groups"]
    groups = {kind: len(some) for kind, some in found[0]["groups"].items()}
    assert groups.pop("all of them") == sum(groups.values())
    assert groups.pop("other axes") == 0
    assert set(groups.values()) == {1}


def test_a_peer_dies(tmp_path):
    """What happens to the survivor is what happens to it with plain JAX; it does not go on."""
    ends = []
    for which in ("jax", "jaxmarshal"):
        survivor, dead = run_together(2, tmp_path, "orphaned", which)
        for _, reported, output in (survivor, dead):
            assert reported, output[-5000:]
            assert (reported[0]["hits"] > 0) == (which == "jaxmarshal")
        status, reported, output = survivor
        assert reported[1:] != [{"outcome": "nothing happened"}]
        ends.append((status, reported[1:], "another task died" in output))
    assert ends[0] == ends[1]
