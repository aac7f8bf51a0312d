"""Memory kinds and queued work on each platform: the CPU, and an NVIDIA GPU if there is one."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from child import run

PROGRAM = Path(__file__).resolve().parent / "platform_process.py"
PLUGINS = ["jax_cuda12_plugin", "jax_cuda13_plugin"]

pytestmark = [pytest.mark.slow, pytest.mark.commands]


def gpu_or_skip():
    """Skip, saying why, unless JAX finds an NVIDIA GPU in a process of its own."""
    if not any(importlib.util.find_spec(name) for name in PLUGINS):
        pytest.skip("NOT DONE: no GPU; JAX's CUDA plugin is not installed")
    asked = run("-c", "import jax; print(jax.devices())", JAX_PLATFORMS="cuda")
    if asked.returncode:
        pytest.skip(f"NOT DONE: no GPU; {asked.stderr.strip().splitlines()[-1]}")


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_memories_and_queued_work(platform):
    """Each memory kind as source and target, chains of computations, transfers in between."""
    if platform == "cuda":
        gpu_or_skip()
    devices = "--xla_force_host_platform_device_count=2"
    done = run(
        str(PROGRAM), platform, JAX_PLATFORMS="cpu" if platform == "cpu" else "cuda,cpu",
        XLA_FLAGS=devices if platform == "cpu" else os.environ.get("XLA_FLAGS"),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["divergences"] == []
    for entry in ("device_put", "compiled_call", "jit", "bind"):
        assert report["fast"][entry], (entry, report["fast"])


def test_self_check_on_a_gpu():
    """`doctor --check` on the GPU's own devices: every entry point, every trap."""
    gpu_or_skip()
    done = run("-m", "jaxmarshal", "doctor", "--check", JAX_PLATFORMS="cuda,cpu", XLA_FLAGS=None)
    assert done.returncode == 0, done.stdout + done.stderr
