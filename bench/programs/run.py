"""Short realistic loops, with plain JAX and with jaxmarshal: same bits, and how much time?

    python bench/programs/run.py                     all of them
    python bench/programs/run.py nnx_train serving   two of them
    python bench/programs/run.py --json FILE         what bench/figures.py makes tables of
    python bench/programs/run.py --quick             a few steps, to see that they run

Exit status 1 where results differ, or where a loop fails. What cannot be imported is skipped, and
the output says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from table import markdown
from worker import OURS, PLAIN, SHARES

from jaxmarshal.benchmarks import results
from jaxmarshal.benchmarks.never_slower import ratio_of

HERE = Path(__file__).resolve().parent
LOOPS = sorted(path.stem for path in (HERE / "loops").glob("*.py"))
#: Steps that are compared one by one. By their end all is compiled and recorded.
CHECKED = 60
#: Processor seconds of plain JAX in one round, and rounds of each side at least.
ROUND, ROUNDS = 0.1, 9


class Failed(Exception):
    """A worker ended before its time; its own words are on the error output."""


class Worker:
    """A process that takes the steps of one side of a loop.

    Attributes:
      first: what it said when it was ready.
    """

    def __init__(self, loop: str, side: str) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "JAXMARSHAL"}
        # An executable from JAX's cache on disk may give other bits than one just compiled.
        environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        environment["PYTHONHASHSEED"] = "0"    # numpyro adds terms in the order of a set
        self._what = f"{loop}, {side}"
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), loop, side], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.first = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"{self._what}: ended with exit status {self._process.wait()}")
        return json.loads(line)

    def ask(self, command: str, steps: int) -> dict[str, Any]:
        """What the worker answers to a command, when it is done."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps((command, steps)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass    # the answer says how it ended
        return self._answer()

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait()


def steps_that_differ(plain: list[str], ours: list[str]) -> list[int]:
    """The numbers of the steps whose bits are not the same, from 0."""
    return [i for i, (a, b) in enumerate(zip(plain, ours, strict=True)) if a != b]


def hit_counts(stats: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    """Hits, misses, and misses by entry point and reason, each for one step."""
    hits, reasons = 0, Counter[str]()
    for counts in stats:
        for entry, found in counts.items():
            hits += found["hits"]
            for reason, number in found["misses_by_reason"].items():
                reasons[f"{entry}: {reason}"] += number
    misses = reasons.total()
    return {
        "hits": hits / steps,
        "misses": misses / steps,
        "hit_rate": hits / (hits + misses) if hits + misses else None,
        "reasons": {name: number / steps for name, number in reasons.most_common()},
    }


def _compare(workers: dict[str, Worker], seconds: float, quick: bool) -> dict[str, Any]:
    """The bits of the first steps, then rounds in turns."""
    sides = [side for side in workers if side != SHARES]
    checked = {side: workers[side].ask("check", CHECKED)["digests"] for side in sides}
    differing = steps_that_differ(checked[PLAIN], checked[OURS])
    pilot = min(workers[PLAIN].ask("measure", 5)["seconds"] for _ in range(3))
    steps = 3 if quick else max(5, int(ROUND / pilot))
    for _ in range(3):
        workers[OURS].ask("measure", 5)

    rounds: dict[str, list[dict[str, Any]]] = {side: [] for side in workers}
    order, end, least = list(workers), time.perf_counter() + seconds, 3 if quick else ROUNDS
    while len(rounds[PLAIN]) < least or (time.perf_counter() < end and not quick):
        for side in order:
            rounds[side].append(workers[side].ask("shares" if side == SHARES else "measure", steps))
        order.reverse()
    for i, (plain, ours) in enumerate(zip(rounds[PLAIN], rounds[OURS], strict=True)):
        if plain["digest"] != ours["digest"]:
            differing.append(CHECKED + 15 + (i + 1) * steps - 1)
    times = {side: [found["seconds"] for found in rounds[side]] for side in sides}
    ratio, error = ratio_of(times[PLAIN], times[OURS])
    return {
        "jax": median(times[PLAIN]) * 1e6,
        "jaxmarshal": median(times[OURS]) * 1e6,
        "ratio": ratio,
        "error": error,
        "rounds": len(rounds[PLAIN]),
        "steps": steps,
        "differing": differing,
        **hit_counts([found["stats"] for found in rounds[OURS]], steps * len(rounds[OURS])),
        "shares": _shares(rounds[SHARES]),
    }


def _shares(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians in microseconds; None where the executables could not be run alone."""
    whole = all(found["computation"] is not None for found in rounds)
    return {
        "library": median(found["library"] for found in rounds) * 1e6,
        "computation": median(found["computation"] for found in rounds) * 1e6 if whole else None,
        "executions": rounds[0]["executions"],
    }


def measure(loop: str, seconds: float, quick: bool = False) -> dict[str, Any]:
    """One loop as a row of the file; `skipped` or `failed` says why there are no figures."""
    row: dict[str, Any] = {"loop": loop, "libraries": []}
    workers: dict[str, Worker] = {}
    try:
        for side in (PLAIN, OURS, SHARES):
            workers[side] = Worker(loop, side)
            row |= workers[side].first
            if "skipped" in row:
                return row
        return row | _compare(workers, seconds, quick)
    except Failed as error:
        return row | {"failed": str(error)}
    finally:
        for worker in workers.values():
            worker.close()


def line(row: dict[str, Any]) -> str:
    """A row for whoever waits."""
    if "skipped" in row:
        return f"{row['loop']:22} SKIPPED, NOT MEASURED: {row['skipped']}"
    if "failed" in row:
        return f"{row['loop']:22} FAILED: {row['failed']}"
    bits = "same bits" if not row["differing"] else f"DIFFERENT in steps {row['differing'][:5]}"
    rate = "no calls" if row["hit_rate"] is None else f"{row['hit_rate']:.0%} hits"
    return (
        f"{row['loop']:22} {row['jax']:8.1f} µs {row['jaxmarshal']:8.1f} µs "
        f"{row['ratio']:5.2f} × ± {row['error']:.2f}  {rate}, {bits}"
    )


def main() -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("loops", nargs="*", metavar="LOOP", help=f"of {', '.join(LOOPS)}")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each loop (5)")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that they run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--note", default="", help="a sentence about the machine, for the file")
    options = parser.parse_args()
    unknown = set(options.loops) - set(LOOPS)
    if unknown:
        parser.error(f"there is no loop {', '.join(sorted(unknown))}")
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"there is no folder {options.json.parent}")

    rows = []
    for loop in options.loops or LOOPS:
        rows.append(measure(loop, options.seconds, options.quick))
        print(line(rows[-1]), flush=True)
        if options.json is not None:
            facts = {"format": 1, "versions": results.versions(), "note": options.note}
            options.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    print(f"\n{markdown(rows)}")
    return 1 if any(row.get("differing") or "failed" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
