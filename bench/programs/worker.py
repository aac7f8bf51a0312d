"""One side of one loop, in a process of its own, which `run.py` starts.

    python worker.py LOOP SIDE    SIDE: plain, jaxmarshal, shares

It answers each line of JSON on its input with one on its output; what else is printed goes to the
error output.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PLAIN, OURS, SHARES = "plain", "jaxmarshal", "shares"
#: Steps in which the executables of a step are noted.
NOTED = 20


class Loop:
    """A loop that goes on where it stopped.

    Attributes:
      done: how many steps have been taken.
    """

    def __init__(self, module: Any) -> None:
        self.state, self.step = module.make()
        self.arrays: Callable[[Any], Any] = getattr(module, "arrays", lambda state: state)
        self.seen: Any = None
        self.done = 0

    def take(self, steps: int) -> float:
        """Take steps; processor seconds of the main thread for each."""
        import jax

        state, seen, step = self.state, self.seen, self.step
        start = time.thread_time()
        for i in range(self.done, self.done + steps):
            state, seen = step(state, i)
        seconds = time.thread_time() - start
        self.state, self.seen = state, seen
        self.done += steps
        jax.block_until_ready((self.arrays(state), seen))
        return seconds / steps

    def digest(self) -> str:
        """A number for all that the loop holds, and what the last step showed."""
        from bits import digest

        return digest((self.arrays(self.state), self.seen))


class Side:
    """What a worker answers: one method for each command."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._executions: Any = None

    def check(self, steps: int) -> dict[str, Any]:
        """Take steps one by one: a number for the bits after each, in `digests`."""
        digests = []
        for _ in range(steps):
            self.loop.take(1)
            digests.append(self.loop.digest())
        return {"digests": digests}

    def measure(self, steps: int) -> dict[str, Any]:
        """Take steps: seconds of each, the bits afterwards, and counts since the last command."""
        import jaxmarshal

        jaxmarshal.reset_stats()
        seconds = self.loop.take(steps)
        counts = jaxmarshal.stats()
        return {"seconds": seconds, "digest": self.loop.digest(), "stats": counts}

    def shares(self, steps: int) -> dict[str, Any]:
        """Seconds of a step in libraries, and in executables run alone (None if not all can be)."""
        from shares import LIBRARY, Executions, Sampler

        if self._executions is None:
            with Executions() as self._executions:
                self.loop.take(NOTED)
        with Sampler() as sampler:
            self.loop.take(steps)
        found = self._executions
        return {
            "library": sampler.seconds[LIBRARY] / steps,
            "computation": found.seconds() / NOTED if found.complete else None,
            "executions": found.count() / NOTED,
        }


def _distribution(library: str) -> str:
    names = importlib.metadata.packages_distributions().get(library, [library])
    return f"{names[0]} {importlib.metadata.version(names[0])}"


def _missing(libraries: tuple[str, ...]) -> str | None:
    """What of a loop's libraries is missing here, or does not import, and why."""
    for name in libraries:
        try:
            importlib.import_module(name)
        except Exception as error:    # whatever a library does not bear with here
            return f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return None


def libraries_of(loop: str) -> tuple[str, ...]:
    """The libraries that a loop needs, read from its source."""
    for line in (HERE / "loops" / f"{loop}.py").read_text().splitlines():
        if line.startswith("LIBRARIES = "):
            return ast.literal_eval(line.removeprefix("LIBRARIES = "))
    raise ValueError(f"{loop} does not say what LIBRARIES it needs")


def start(name: str, side: str) -> tuple[dict[str, Any], Side | None]:
    """The first answer, and what answers from then on."""
    import jaxmarshal

    if side == OURS:
        jaxmarshal.install()
    if side == SHARES:
        from shares import without_fast_path

        without_fast_path()
    needed = libraries_of(name)
    missing = _missing(needed)
    if missing is not None:
        return {"skipped": missing}, None
    versions = [_distribution(library) for library in needed]
    return {"libraries": versions}, Side(Loop(importlib.import_module(name)))


def main() -> int:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.path[:0] = [str(HERE / "loops"), str(HERE)]
    first, side = start(*sys.argv[1:])
    print(json.dumps(first), file=answers)
    if side is None:
        return 0
    for line in sys.stdin:
        command, steps = json.loads(line)
        print(json.dumps(getattr(side, command)(steps)), file=answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
