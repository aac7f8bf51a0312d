"""Every allocation of a fast call fails in turn.

    python soak/faults.py [--most N]

For each kind of call and each n, the n-th allocation that Python makes during the call fails, by
`_testcapi.set_nomemory`. The call must raise MemoryError, or give the right result without that
memory; the next call must be right. Where the process dies, it has to be in jaxlib, whose
functions do not all look whether they got the memory that they asked for. Prints one line of
JSON; exit status 1 for anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

#: Allocations of a call that are made to fail, at most.
MOST = 60

PROGRAM = '''
import ctypes, json, os, sys
import _testcapi, jax, jax.numpy as jnp, numpy as np
from jax import lax
import jaxmarshal
kind, first, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
jaxmarshal.install()
host = np.arange(4, dtype=np.float32)
x = jax.device_put(host)
model = {"w": [x, x], "b": {"c": (x, x)}}
wide = [x] * 40
f = jax.jit(lambda t: jax.tree.map(lambda v: v + 1, t))
run = jax.jit(lambda t: jax.tree.map(lambda v: v * 2, t)).lower(model).compile()
flat = jax.jit(lambda v: v * 3).lower(x).compile()._executable
KINDS = {
    "device_put numpy": lambda: jax.device_put(host),
    "device_put a dict": lambda: jax.device_put({"a": host, "b": [x, 1.5]}),
    "jit": lambda: f(model), "jit, 40 arrays": lambda: f(wide), "jit, numpy": lambda: f([x, host]),
    "compiled": lambda: run(model), "MeshExecutable.call": lambda: flat.call(x),
    "lax.add": lambda: lax.add(x, x), "asarray": lambda: jnp.asarray(host),
    "zeros": lambda: jnp.zeros(3), "index": lambda: x[1],
}
if kind == "list":
    print(json.dumps(list(KINDS)))
    sys.exit()
call = KINDS[kind]

def plain(tree):
    return [np.asarray(v).tolist() for v in jax.tree.leaves(tree)]

# Where the process dies: the innermost function that is not of the C library.
libc = ctypes.CDLL(None)
frames = (ctypes.c_void_p * 64)()

@ctypes.CFUNCTYPE(None, ctypes.c_int)
def dying(signal):
    size = libc.backtrace(frames, 64)
    libc.backtrace_symbols_fd(frames, size, 1)
    os._exit(3)

libc.backtrace(frames, 64)    # loads what it needs
for signal in (6, 11):
    libc.signal(signal, dying)

for _ in range(4):
    expected = plain(call())
for n in range(first, most):
    print(json.dumps({"n": n}), flush=True)
    result, outcome = None, "right"
    _testcapi.set_nomemory(n, n + 1)
    try:
        result = call()
    except MemoryError:
        outcome = "MemoryError"
    except BaseException as error:
        outcome, raised = type(error), error
    finally:
        _testcapi.remove_mem_hooks()
    if isinstance(outcome, type):
        outcome = outcome.__name__ + ": " + str(raised)
    elif outcome == "right" and plain(result) != expected:
        outcome = "wrong"
    if plain(call()) != expected:
        outcome = "wrong afterwards"
    print(json.dumps({"n": n, "outcome": outcome}), flush=True)
'''


def run(kind: str, first: int, most: int) -> tuple[list[Any], list[str]]:
    """The JSON that the program printed, line by line, and its stack if it died."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("PYTHONFAULTHANDLER", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, str(first), str(most)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    reported = [json.loads(line) for line in lines if line.startswith(("{", "["))]
    return reported, [line for line in lines if re.match(r"\S*\(.*\)\[0x", line)]


def dead_in(stack: list[str]) -> str:
    """The library that the process died in, or that called CPython so that it did; or `?`."""
    libraries = [Path(line.partition("(")[0]).name for line in stack]
    # The handler's own frames end where the C library calls it.
    while libraries and not libraries[0].startswith("libc.so"):
        del libraries[0]
    for library in libraries:
        if not library.startswith(("libc.", "libstdc++", "libgcc", "libpython", "python")):
            return library.partition(".")[0]
    return "?"


def outcomes(kind: str, most: int) -> dict[int, str]:
    """What each failure led to."""
    found: dict[int, str] = {}
    while len(found) < most:
        reported, stack = run(kind, len(found), most)
        if not reported:
            raise RuntimeError(f"{kind}: the program did not start")
        for line in reported:
            found[line["n"]] = line.get("outcome", f"died in {dead_in(stack)}")
    return found


def is_right(outcome: str) -> bool:
    """Is it the reference's own way to end, or none?"""
    of_jaxlib = ("died in libjax", "SystemError: <nanobind")
    return outcome in ("right", "MemoryError") or outcome.startswith(of_jaxlib)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--most", type=int, default=MOST, help="allocations of a call that fail")
    options = parser.parse_args()
    (kinds,), _ = run("list", 0, 0)
    report: dict[str, Any] = {"faults": 0, "outcomes": {}, "bad": []}
    for kind in kinds:
        found = outcomes(kind, options.most)
        report["faults"] += len(found)
        for outcome in found.values():
            report["outcomes"][outcome] = report["outcomes"].get(outcome, 0) + 1
        report["bad"] += [f"{kind}, {n}: {how}" for n, how in found.items() if not is_right(how)]
    print(json.dumps(report))
    return 1 if report["bad"] else 0


if __name__ == "__main__":
    sys.exit(main())
