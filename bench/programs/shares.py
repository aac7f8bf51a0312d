"""Where a step of plain JAX spends its time: in computations, in libraries, and on the way to them.

Two things are measured, in seconds of processor time of the main thread for each step; dispatch is
what remains of a step.

- *Computation*: the executables that a step runs are noted with their arguments, and each is run
  alone by the one jaxlib call that does it, `execute_sharded`.
- *Library*: a timer stops the loop at random, about a thousand times a second, and the time since
  the last stop goes to whoever's Python was running: JAX's, or that of the library and the loop.
  The standard library and numpy count for their caller; what JAX calls on its way to an executable
  counts for JAX.

For both, calls of compiled functions go through JAX's Python instead of jaxlib's C++ path, which
neither sees. That makes a step slower, but neither what libraries do nor what is executed.
"""

from __future__ import annotations

import random
import signal
import sysconfig
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jax
import jaxlib
import numpy as np

from jaxmarshal._jax import private

#: Calls of each executable in one measurement of it.
CALLS = 10
JAX, ASIDE, DISPATCH, LIBRARY = "jax", "aside", "dispatch", "library"
_FOLDERS = (
    (str(Path(jax.__file__).parent / "_src" / "pjit.py"), DISPATCH),
    (str(Path(jax.__file__).parent / "_src" / "stages.py"), DISPATCH),
    (str(Path(jax.__file__).parent) + "/", JAX),
    (str(Path(jaxlib.__file__).parent) + "/", JAX),
    (str(Path(np.__file__).parent) + "/", ASIDE),
    (str(Path(sysconfig.get_path("purelib"))) + "/", LIBRARY),
    (str(Path(sysconfig.get_path("stdlib"))) + "/", ASIDE),
    ("<frozen", ASIDE),
)


def without_fast_path() -> None:
    """Send calls of compiled functions through JAX's Python, from now on."""
    private.pxla.MeshExecutableFastpathData = lambda *_, **__: None


def _owner(code: CodeType) -> str:
    for start, owner in _FOLDERS:
        if code.co_filename.startswith(start):
            return owner
    return LIBRARY


class Sampler:
    """Stops the main thread at random and adds up whose Python was running.

    Attributes:
      seconds: processor time of the main thread by owner, `jax` or `library`.
    """

    def __init__(self) -> None:
        self.seconds = {JAX: 0.0, LIBRARY: 0.0}
        self._owners: dict[CodeType, str] = {}
        self._last = 0.0
        self._running = False

    def _owner_of(self, frame: FrameType | None) -> str:
        found = ASIDE
        while frame is not None:
            owner = self._owners.get(frame.f_code)
            if owner is None:
                owner = self._owners[frame.f_code] = _owner(frame.f_code)
            if owner == DISPATCH:
                return JAX
            if found == ASIDE:
                found = owner
            frame = frame.f_back
        return LIBRARY if found == ASIDE else found

    def _stop(self, _: int, frame: FrameType | None) -> None:
        self.seconds[self._owner_of(frame)] += time.thread_time() - self._last
        if self._running:
            self._arm()

    def _arm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.0015))
        self._last = time.thread_time()

    def __enter__(self) -> Sampler:
        signal.signal(signal.SIGALRM, self._stop)
        self._running = True
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        self._running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)    # one may be on its way


class Executions:
    """The executables that run while this is entered, each with arguments of its own.

    Attributes:
      complete: False where one has effects or mutable references, and is not among them.
    """

    def __init__(self) -> None:
        self.complete = True
        self._found: dict[int, list[Any]] = {}    # id -> [owner, arguments, how often it ran]
        self._busy = False

    def __enter__(self) -> Executions:
        original = self._original = private.ExecuteReplicated.__call__

        def call(owner: Any, *args: Any) -> Any:
            if not self._busy:
                self._busy = True
                try:
                    self._note(owner, args)
                finally:
                    self._busy = False
            return original(owner, *args)

        private.ExecuteReplicated.__call__ = call
        return self

    def __exit__(self, *_: object) -> None:
        private.ExecuteReplicated.__call__ = self._original

    def _note(self, owner: Any, args: tuple[Any, ...]) -> None:
        if owner.mut or owner.ordered_effects or owner.has_unordered_effects:
            self.complete = False
        elif id(owner) in self._found:
            self._found[id(owner)][2] += 1
        else:
            kept = [x for i, x in enumerate(args) if i in owner.kept_var_idx]
            self._found[id(owner)] = [owner, [_copy(x) for x in owner.in_handler(kept)], 1]

    def count(self) -> int:
        """How often executables ran."""
        return sum(times for _, _, times in self._found.values())

    def seconds(self) -> float:
        """Processor time of the main thread that all of it takes, run alone."""
        return sum(
            times * _seconds_per_call(owner, args) for owner, args, times in self._found.values()
        )


def _copy(array: Any) -> Any:
    return jax.device_put(np.array(array), array.sharding, may_alias=False)


def _seconds_per_call(owner: Any, args: list[Any]) -> float:
    """Processor time of one call of an executable; what it donates is copied before."""
    run, handlers = owner.xla_executable.execute_sharded, owner.out_handler.handlers
    first = [_copy(x) for x in args]
    jax.block_until_ready(run(first).consume_with_handlers(handlers))
    donates = any(x.is_deleted() for x in first)
    sets = [[_copy(x) for x in args] if donates else args for _ in range(CALLS)]
    jax.block_until_ready(sets)
    start = time.thread_time()
    for arguments in sets:
        out = run(arguments).consume_with_handlers(handlers)
    seconds = (time.thread_time() - start) / CALLS
    jax.block_until_ready(out)
    return seconds
