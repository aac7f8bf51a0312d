"""Run a file of google_benchmark cases, such as JAX's own, without and with jaxmarshal.

    python bench/foreign.py FILE [--rows REGEX] [--rounds 7] [--seconds 0.05]

`benchmarks/api_benchmark.py` and `benchmarks/tracing_benchmark.py` of JAX's repository are meant;
the package google_benchmark is not needed. Both sides run in this process and take turns; a row is
made anew for each round, and the best round of a side counts. *noise* is how far the median round
of the noisier side is from its best; a row is marked where jaxmarshal is slower by more than that
and by more than 3 %.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import os
import re
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

SHORTEST = 5e-4    # seconds of a batch; shorter ones are not timed


class Skipped(Exception):
    """A row said that it cannot run here."""


class State:
    """What a row sees of the library: arguments, and truth as long as it should go on."""

    def __init__(self, arguments: list[int], seconds: float) -> None:
        self.arguments = arguments
        self.counters: dict[str, Any] = {}
        self.best: float | None = None
        self.until = time.perf_counter() + seconds
        self.batch = 1
        self.left = -1
        self.batches = 0

    def range(self, i: int) -> int:
        return self.arguments[i]

    def skip_with_error(self, message: str) -> None:
        raise Skipped(message)

    def pause_timing(self) -> None:
        self.paused_at = time.perf_counter()

    def resume_timing(self) -> None:
        self.paused += time.perf_counter() - self.paused_at

    def __bool__(self) -> bool:
        now = time.perf_counter()
        if self.left > 0:
            self.left -= 1
            return True
        if self.left == 0:
            took = now - self.started - self.paused
            if took < SHORTEST and self.batch < 1 << 17:
                self.batch *= 2
            else:
                self.batches += 1
                each = took / self.batch
                self.best = each if self.best is None else min(self.best, each)
            if now > self.until and self.batches > 1:
                return False
        self.left = self.batch - 1
        self.paused = 0.0
        self.started = time.perf_counter()
        return True


class Row:
    """A registered function, with the sets of arguments that it runs for."""

    def __init__(self, function: Callable[[State], None], name: str | None = None) -> None:
        self.function = function
        self.name = name or getattr(function, "__name__", "a row")
        self.sets: list[list[int]] = []


def google_benchmark(rows: list[Row]) -> types.ModuleType:
    """A module that collects rows instead of running them."""

    def as_row(function: Any) -> Row:
        return function if isinstance(function, Row) else Row(function)

    def register(function: Any = None, *, name: str | None = None, **_: Any) -> Any:
        if function is None:
            return lambda function: register(function, name=name)
        row = as_row(function)
        row.name = name or row.name
        if row not in rows:
            rows.append(row)
        return row

    def adding(sets: Iterable[Iterable[int]]) -> Callable[[Any], Row]:
        def add(function: Any) -> Row:
            row = as_row(function)
            row.sets = [list(arguments) for arguments in sets] + row.sets
            return row

        return add

    class Options:
        """Decorators; those that do not matter here do nothing."""

        arg = staticmethod(lambda value: adding([[value]]))
        args = staticmethod(lambda values: adding([values]))
        args_product = staticmethod(lambda sets: adding(itertools.product(*sets)))
        dense_range = staticmethod(lambda start, stop, step: adding([[start]]))

        def __getattr__(self, name: str) -> Any:
            return lambda *_: as_row

    module: Any = types.ModuleType("google_benchmark")
    module.register, module.option, module.main = register, Options(), lambda: None
    module.kNanosecond = module.kMicrosecond = module.kMillisecond = module.kSecond = 0
    return module


def load(path: str) -> tuple[Any, list[Row]]:
    """A file as a module, and its rows."""
    rows: list[Row] = []
    sys.modules["google_benchmark"] = google_benchmark(rows)
    spec = importlib.util.spec_from_file_location("foreign", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, rows


def measure(row: Row, arguments: list[int], rounds: int, seconds: float) -> list[list[float]]:
    """Seconds of each round of both sides."""
    import jaxmarshal

    times: list[list[float]] = [[], []]
    for turn in range(2 * rounds):
        side = (turn + turn // 2) % 2    # each side is first in every second round
        state = State(arguments, seconds)
        with jaxmarshal.installed() if side else contextlib.nullcontext():
            row.function(state)
        assert state.best is not None
        times[side].append(state.best)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("file")
    parser.add_argument("--rows", default="", help="a regular expression that names have to match")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.05, help="of a round of one side")
    options = parser.parse_args()
    print("| row | JAX µs | jaxmarshal µs | × faster | noise | |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in load(options.file)[1]:
        if not re.search(options.rows, row.name):
            continue
        for arguments in row.sets or [[]]:
            name = " ".join([row.name, *map(str, arguments)])
            try:
                times = measure(row, arguments, options.rounds, options.seconds)
            except Exception as error:
                print(f"| {name} | | | | | {type(error).__name__} |", flush=True)
                continue
            best = [min(side) for side in times]
            noise = max(statistics.median(side) / min(side) for side in times) - 1
            mark = "slower" if best[1] > best[0] * (1 + max(0.03, noise)) else ""
            print(
                f"| {name} | {1e6 * best[0]:.1f} | {1e6 * best[1]:.1f} | "
                f"{best[0] / best[1]:.2f} | {noise:.0%} | {mark} |", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
