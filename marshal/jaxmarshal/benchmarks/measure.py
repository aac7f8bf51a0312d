"""Interleaved measurement: the sides of a case take turns in one process.

The best round counts, or the median where several devices work: there a round also waits for what
the one before left to other threads, and its best is luck.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median, stdev
from typing import Any

import jax

from jaxmarshal import stats
from jaxmarshal.benchmarks.case import Case, Sides

ROUND = 0.002    # seconds; a shorter round is mostly cold caches
PARTS = 5        # independent parts of a measurement, whose spread is its noise


class WrongPath(AssertionError):
    """A call did not take the path that its case is about."""


class NotHere(RuntimeError):
    """A case that cannot be measured on this backend, and why."""


def build(case: Case) -> Sides:
    """The sides of a case.

    Raises:
      NotHere: there are too few devices, or plain JAX itself fails to make what the case calls.
    """
    if len(jax.devices()) < case.devices:
        raise NotHere(f"it needs {case.devices} devices")
    try:
        return case.build()
    except Exception as error:
        first, *_ = [*str(error).splitlines(), ""]
        raise NotHere(
            f"plain JAX cannot do this here: {type(error).__name__}: {first[:100]}"
        ) from error


def check_path(case: Case, sides: Sides) -> None:
    """Assert that the jaxmarshal side hits (or, for a refused case, misses) in every call."""
    def turn() -> None:
        with sides.around("reference"):
            sides.reference()    # in step: some cases give another value in each turn
        with sides.around("jaxmarshal"):
            sides.jaxmarshal()

    for _ in range(10):
        turn()
    before = stats()[case.entry]
    for _ in range(5):
        turn()
    after = stats()[case.entry]
    gained = (after["hits"] - before["hits"], after["misses"] - before["misses"])
    if not case.watched:
        return
    expected = (5, 0) if case.hits else (0, 5)
    if gained != expected:
        raise WrongPath(f"{case.name}: {gained} hits and misses in 5 calls, not {expected}")


def seconds_per_call(call: Callable[[], Any], number: int) -> float:
    """One round."""
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / number


def in_new_process(function: Callable[..., Any], *args: Any) -> Any:
    """What a function of a module returns in a process that begins with it."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *args).result()


def _rounds(
    sides: Sides, calls: dict[str, Callable[[], Any]], seconds: float
) -> dict[str, list[float]]:
    """Seconds per call of every round of every side; at least one round for each part."""

    def one_round(side: str, number: int) -> float:
        with sides.around(side):
            if sides.installed:    # installing changes classes: the interpreter starts afresh
                seconds_per_call(calls[side], 30)
            return seconds_per_call(calls[side], number)

    number = {side: max(3, int(ROUND / one_round(side, 5))) for side in calls}
    rounds: dict[str, list[float]] = {side: [] for side in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds["reference"]) < PARTS:
        for side in calls:
            rounds[side].append(one_round(side, number[side]))
    return rounds


def _ratio(
    rounds: dict[str, list[float]], over: str, under: str, best: Callable[[list[float]], float]
) -> tuple[float, float]:
    """The ratio of two sides, and its relative standard error over the parts of the run."""
    whole = best(rounds[over]) / best(rounds[under])
    parts = [best(rounds[over][i::PARTS]) / best(rounds[under][i::PARTS]) for i in range(PARTS)]
    return whole, stdev(parts) / whole


def measure(group: str, case: Case, seconds: float = 1.5) -> dict[str, Any]:
    """One row: microseconds of every side, their ratios, and how uncertain these are.

    A case whose entry point this jaxmarshal does not accelerate has no jaxmarshal side. Keys with
    `_noise` are relative.

    Raises:
      NotHere: it cannot be measured on this backend.
      WrongPath: where the jaxmarshal side did not take the path the case is about.
    """
    sides = build(case)
    row: dict[str, Any] = {
        "group": group, "case": case.name, "series": case.series, "leaves": case.leaves,
        "devices": case.devices, "accelerated": case.accelerated, "hits": case.hits,
        "least_speedup": case.least_speedup, "most_over_floor": case.most_over_floor,
    }  # fmt: skip
    calls = {"reference": sides.reference}
    if case.accelerated:
        check_path(case, sides)
        calls["jaxmarshal"] = sides.jaxmarshal
    if sides.floor is not None:
        calls["floor"] = sides.floor
    rounds = _rounds(sides, calls, seconds)
    best = median if case.devices > 1 else min
    row |= {side: best(times) * 1e6 for side, times in rounds.items()}
    if "jaxmarshal" in row:
        row["speedup"], row["speedup_noise"] = _ratio(rounds, "reference", "jaxmarshal", best)
        if "floor" in row:
            row["over_floor"], row["over_floor_noise"] = _ratio(rounds, "jaxmarshal", "floor", best)
    return row


def meets(row: dict[str, Any]) -> bool:
    """Does a row keep the bars of its case? One that is not accelerated has none to keep."""
    if "speedup" not in row:
        return True
    fast = row["least_speedup"] is None or row["speedup"] >= row["least_speedup"]
    near = (
        row["most_over_floor"] is None
        or "over_floor" not in row
        or row["over_floor"] <= row["most_over_floor"]
    )
    return fast and near


def per_leaf(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, float]]:
    """Microseconds per further leaf, by (group, series) and side: a least-squares slope.

    Each row weighs as the inverse of its time, so that the widest call does not decide alone.
    """
    slopes: dict[tuple[str, str], dict[str, float]] = {}
    series: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["series"]:
            series.setdefault((row["group"], row["series"]), []).append(row)
    for key, members in series.items():
        if len({row["leaves"] for row in members}) < 2:
            continue
        for side in ("reference", "jaxmarshal", "floor"):
            points = [(row["leaves"], row[side]) for row in members if side in row]
            if len(points) < 2:
                continue
            weights = [1 / y for _, y in points]
            total = sum(weights)
            mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
            mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
            spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
            slope = sum(
                w * (x - mean_x) * (y - mean_y)
                for w, (x, y) in zip(weights, points, strict=True)
            )
            slopes.setdefault(key, {})[side] = slope / spread
    return slopes
