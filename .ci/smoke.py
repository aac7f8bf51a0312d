"""Does what is installed work, and is it whole? Run by the Python that it was installed for.

    python .ci/smoke.py                 exit status 1 and a sentence where something is wrong
    python .ci/smoke.py --jax 0.11.2    the same, and JAX must be this version

The package must not be the source tree's. Besides it only JAX and numpy are needed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

import jaxmarshal

SOURCES = Path(__file__).resolve().parents[1] / "marshal"
PACKAGE = Path(jaxmarshal.__file__).resolve().parent

#: Something of each kind that is installed besides Python files, below the package.
KINDS = ("device_put.*.so", "array_words.pxd", "array_words.pyi", "py.typed", "*.html")


def require(true: object, otherwise: str) -> None:
    """End with a sentence unless this is true."""
    if not true:
        sys.exit(f"{PACKAGE}: {otherwise}")


def check_files(wanted_jax: str | None) -> None:
    """The right versions, and all that belongs to the package."""
    found = importlib.metadata.version("jax")
    require(wanted_jax in (None, found), f"JAX {wanted_jax} was asked for, {found} is installed")
    require(not PACKAGE.is_relative_to(SOURCES), "this is the source tree, not an installation")
    require(
        jaxmarshal.__version__ == importlib.metadata.version("jaxmarshal"),
        "the package and its metadata disagree about the version",
    )
    for pattern in KINDS:
        require(list(PACKAGE.rglob(pattern)), f"there is no {pattern}")
    headers = {path.name for path in Path(jaxmarshal.get_include(), "jaxmarshal").glob("*.h")}
    wanted = {path.name for path in (SOURCES.parent / "include" / "jaxmarshal").glob("*.h")}
    require(headers and headers >= wanted, f"headers are missing: {sorted(wanted - headers)}")


def check_calls() -> None:
    """Both kinds of entry points are fast the second time, and give what plain JAX gives."""
    tree = {"a": np.arange(6, dtype=np.float32), "b": [1.5, np.int32(3)]}
    compiled = jax.jit(lambda x: x + 1).lower(np.zeros(3, np.float32)).compile()
    argument = jax.device_put(np.ones(3, np.float32))
    plain_put = jax.device_put
    expected = str((plain_put(tree), compiled(argument)))
    with jaxmarshal.installed():
        for _ in range(3):
            found = str((jax.device_put(tree), compiled(argument)))
            require(found == expected, f"got {found} instead of {expected}")
    require(jax.device_put is plain_put, "uninstalling did not restore jax.device_put")
    for name in ("device_put", "compiled_call"):
        hits = jaxmarshal.stats()[name]["hits"]
        require(hits >= 2, f"{name} took the fast path {hits} times of 3")


def check_commands() -> None:
    """The program and the module of the same name."""
    program = Path(sys.executable).parent / "jaxmarshal"
    for command in ([program], [sys.executable, "-m", "jaxmarshal"]):
        done = subprocess.run([*command, "doctor"], capture_output=True, text=True)
        require(done.returncode == 0, f"doctor failed: {done.stdout}{done.stderr}")


def main() -> None:
    """All checks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jax", metavar="VERSION", help="the version of JAX there should be")
    options = parser.parse_args()
    check_files(options.jax)
    check_calls()
    check_commands()
    print(f"Python {sys.version.split()[0]}, JAX {jax.__version__}, {PACKAGE}: works")


if __name__ == "__main__":
    main()
