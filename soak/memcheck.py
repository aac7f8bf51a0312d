"""Memory errors of the extension modules, as valgrind sees them.

    make memcheck

Takes each path of `tests/whole/test_balance.py` a few times under memcheck, and reports invalid
reads and writes, and decisions by memory never written, where one of our modules is among the
innermost functions. Python, NumPy and jaxlib have some of their own, which are not reported.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
#: Times that each path is taken: to compile, to record, and to hit twice.
TIMES = 4
#: So many functions, innermost first, in which an error counts as ours.
INNERMOST = 4
#: Looking for a word in objects of jaxlib, they look at every word, also at those never written.
EXPECTED = ("array_words.", "all_jitted."), {"UninitCondition", "UninitValue"}


def take_paths() -> None:
    """What runs under valgrind."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    sys.path[:0] = [str(TESTS / "whole"), str(TESTS / "harness")]
    import test_balance

    import jaxmarshal

    with jaxmarshal.installed():
        paths = test_balance.paths()
        for call, make in paths.values():
            for _ in range(TIMES):
                with contextlib.suppress(Exception):
                    call(*make())
            gc.collect(1)
        counts = jaxmarshal.stats()
    hits = {name: counts[name]["hits"] for name in counts if counts[name]["hits"]}
    print(json.dumps({"calls": TIMES * len(paths), "hits": hits}), flush=True)


def errors(file: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The kind of each error, and its (library, function) innermost first.

    Not what is called lost: it is the modules themselves, which Python never unloads.
    """
    for _, element in ElementTree.iterparse(file):
        if element.tag == "error" and not element.findtext("kind", "").startswith("Leak_"):
            stack = element.find("stack")
            frames = list(stack.iter("frame")) if stack is not None else []
            yield (
                element.findtext("kind", ""),
                [(Path(f.findtext("obj", "")).name, f.findtext("fn", "?")) for f in frames],
            )
            element.clear()


def ours() -> set[str]:
    """The file names of the extension modules."""
    import jaxmarshal

    return {path.name for path in Path(jaxmarshal.__file__).parent.rglob("*.so")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().inside:
        take_paths()
        return 0
    if shutil.which("valgrind") is None:
        print("NOT DONE: memcheck; there is no valgrind here")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/errors.xml"
        done = subprocess.run(
            ["valgrind", "--leak-check=no", "--error-limit=no", "--child-silent-after-fork=yes",
             "--xml=yes", f"--xml-file={file}", sys.executable, __file__, "--inside"],
            env={**os.environ, "PYTHONMALLOC": "malloc", "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            print(f"The program failed under valgrind:\n{done.stdout}")
            return 1
        modules = ours()
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        report |= {"elsewhere": 0, "expected": 0, "errors": []}
        for kind, frames in errors(file):
            inside = [name for name, _ in frames[:INNERMOST] if name in modules]
            if not inside:
                report["elsewhere"] += 1
            elif inside[0].startswith(EXPECTED[0]) and kind in EXPECTED[1]:
                report["expected"] += 1
            else:
                report["errors"].append([kind, *frames[:8]])
    print(json.dumps(report))
    return 1 if report["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
