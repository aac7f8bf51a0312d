"""Calls that place data in a program of two processes, by JAX and by jaxmarshal.

    python bench/several_processes.py [--json build/processes.json] [--seconds 2]

Two processes on this machine with two CPU devices each. In both the sides take turns in rounds of
some calls; what counts is processor time of the calling thread, and of the ratios of neighbouring
rounds the median. The first process reports.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import jaxmarshal

CALLS = 100    # of a round


def calls() -> dict[str, Callable[[], Any]]:
    """What is measured; names are looked up at each call, for `install()` to replace them."""
    everywhere = jax.sharding.Mesh(np.asarray(jax.devices()), ("x",))
    rows = NamedSharding(everywhere, PartitionSpec("x"))
    here = jax.sharding.Mesh(np.asarray(jax.local_devices()), ("x",))
    local = NamedSharding(here, PartitionSpec("x"))
    device = jax.local_devices()[0]
    images, labels = np.ones((64, 8), np.float32), np.zeros(64, np.int32)
    array = jax.make_array_from_process_local_data(rows, images)
    step = jax.jit(lambda x: x * 2)
    return {
        "make_array_from_process_local_data(rows, images)":
            lambda: jax.make_array_from_process_local_data(rows, images),
        "the same with a dict of two arrays":
            lambda: jax.make_array_from_process_local_data(
                rows, {"images": images, "labels": labels}
            ),
        "device_put(images, a device of this process)": lambda: jax.device_put(images, device),
        "device_put(images, all devices of this process)": lambda: jax.device_put(images, local),
        "jnp.asarray(images)": lambda: jnp.asarray(images),
        "a jitted function of a global array": lambda: step(array),
    }  # fmt: skip


def ratio(call: Callable[[], Any], seconds: float) -> float:
    """Time with plain JAX over time with jaxmarshal."""
    found: dict[bool, list[float]] = {False: [], True: []}
    order = [False, True]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[True]) < 10:
        for is_installed in order:
            (jaxmarshal.install if is_installed else jaxmarshal.uninstall)()
            for _ in range(6):
                call()
            started = time.thread_time()
            for _ in range(CALLS):
                call()
            found[is_installed].append(time.thread_time() - started)
        order.reverse()
    jaxmarshal.uninstall()
    return median(a / b for a, b in zip(found[False], found[True], strict=True))


def process(port: int, number: int, seconds: float) -> list[dict[str, Any]]:
    """What one of the processes does. Nothing that is measured communicates."""
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, number)
    rows = [{"call": name, "ratio": ratio(call, seconds)} for name, call in calls().items()]
    jax.distributed.shutdown()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each call (default: 2)")
    parser.add_argument("--process", type=int, nargs=2, metavar=("PORT", "NUMBER"))
    options = parser.parse_args()
    if options.process:
        json.dump(process(*options.process, options.seconds), sys.stdout)
        return 0
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, __file__, "--seconds", str(options.seconds), "--process", str(port)]
    both = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE) for i in range(2)]
    outputs = [one.communicate()[0] for one in both]
    if any(one.returncode for one in both):
        return 1
    rows = json.loads(outputs[0])
    for row in rows:
        print(f"{row['ratio']:6.2f} x  {row['call']}")
    if options.json:
        found = {
            "jax": jax.__version__, "backend": "cpu", "python": platform.python_version(),
            "rows": rows,
        }    # fmt: skip
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
