"""Takes each guard out, one after the other, and sees that its tests fail then.

    make guards
    make guards ARGS='"data layout"'    # those about it

What the guards are, and which tests are theirs, is in `guards.toml`. Everything happens in a copy
of the sources, below build/guards; where `--python` names another interpreter, with its JAX.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GUARDS = ROOT / "soak" / "guards.toml"
FOLDERS = {
    ".h": "include/jaxmarshal", ".pyx": "marshal/jaxmarshal", ".py": "marshal/jaxmarshal",
}  # fmt: skip
#: Seconds that a test may take; without a guard it may wait forever.
LIMIT = 300


@dataclass
class Guard:
    """One guard as `guards.toml` describes it."""

    what: str
    file: str
    guard: str
    gone: str
    tests: list[str]
    also: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Where the file is, from the root."""
        return f"{FOLDERS[Path(self.file).suffix]}/{self.file}"

    def without(self, text: str) -> str:
        """The file's text with the guard taken out. ValueError where it is not there once."""
        times = text.count(self.guard)
        if times != 1:
            raise ValueError(f"{self.what}: its text is {times} times in {self.file}")
        return text.replace(self.guard, self.gone)


def guards() -> list[Guard]:
    """All of them, those of one file together: what a change rebuilds is rebuilt once."""
    listed = [Guard(**entry) for entry in tomllib.loads(GUARDS.read_text())["guards"]]
    return sorted(listed, key=lambda guard: guard.file)


def sources() -> Iterator[str]:
    """The files that git knows or would know, from the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    yield from (name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file())


def taken_out(guard: Guard, known: list[Guard]) -> dict[str, str]:
    """The files that change where a guard is taken out, and their text then."""
    changed: dict[str, str] = {}
    for one in [guard, *(other for other in known if other.what in guard.also)]:
        text = changed.get(one.path) or (ROOT / one.path).read_text()
        changed[one.path] = one.without(text)
    return changed


class Copy:
    """A copy of the sources, built in place."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.python = python

    def write(self, changed: dict[str, str]) -> None:
        """The sources as they are, but for `changed`. Files that are right stay untouched."""
        for name in sources():
            target = self.folder / name
            wanted = changed[name].encode() if name in changed else (ROOT / name).read_bytes()
            if not target.exists() or target.read_bytes() != wanted:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(wanted)

    def build(self) -> None:
        """Compile what has changed. RuntimeError where that fails."""
        done = subprocess.run(
            [self.python, "setup.py", "--quiet", "build_ext", "--inplace"],
            cwd=self.folder, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"it does not build:\n{done.stdout}{done.stderr}")

    def passes(self, *tests: str, limit: float | None = LIMIT) -> bool:
        """Do these tests pass? A process that dies or never ends has failed."""
        command = [self.python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*command, *(f"tests/{test}" for test in tests)],
                cwd=self.folder, capture_output=True, text=True, timeout=limit,
                env={**os.environ, "PYTHONPATH": str(self.folder / "marshal")},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        if done.returncode in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise RuntimeError(f"{tests} cannot be run:\n{done.stdout}{done.stderr}")
        return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("about", nargs="*", help="only guards with one of these words in `what`")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to use")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "guards")
    options = parser.parse_args()
    listed = guards()
    chosen = [
        guard for guard in listed
        if not options.about or any(word in guard.what for word in options.about)
    ]  # fmt: skip
    copy = Copy(options.folder, options.python)
    copy.write({})
    copy.build()
    if not copy.passes(*sorted({test for guard in chosen for test in guard.tests}), limit=None):
        print("Some of the tests fail with every guard in place.")
        return 1
    missed = 0
    for guard in chosen:
        started = time.perf_counter()
        copy.write(taken_out(guard, listed))
        copy.build()
        unseen = [test for test in guard.tests if copy.passes(test)]
        missed += bool(unseen)
        print(
            f"{'MISSED' if unseen else 'seen':6} {guard.file:16} {guard.what}"
            f"  ({len(guard.tests)} tests, {time.perf_counter() - started:.0f} s)",
            *(f"       passes without it: {test}" for test in unseen),
            sep="\n", flush=True,
        )  # fmt: skip
    print(f"{len(chosen)} guards, {missed} of which a test of theirs did not miss")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
