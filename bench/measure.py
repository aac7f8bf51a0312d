"""Interleaved measurement: the sides of a case take turns in one process, the best round counts
(the median where several devices work)."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from cases import Case

import jaxmarshal


def versions() -> dict[str, str]:
    """What the figures belong to."""
    found = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    return {"python": platform.python_version(), **found, "machine": machine()}


def machine() -> str:
    """The processor's name, where the system tells."""
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    except OSError:
        names = []
    return f"{names[0]} ({len(names)} cores)" if names else platform.processor()


def check_path(case: Case) -> None:
    """The jaxmarshal side takes the path that the case says, in each of several calls."""
    for _ in range(10):
        case.reference()
        case.jaxmarshal()
    before = jaxmarshal.stats()[case.entry]
    for _ in range(5):
        case.jaxmarshal()
    after = jaxmarshal.stats()[case.entry]
    gained = (after["hits"] - before["hits"], after["misses"] - before["misses"])
    expected = (5, 0) if case.hits else (0, 5)
    if gained != expected:
        raise AssertionError(f"{case.name}: {gained} hits and misses in 5 calls, not {expected}")


def seconds_per_call(call: Callable[[], Any], number: int) -> float:
    """One round."""
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / number


def measure(case: Case, seconds: float = 1.5) -> dict[str, Any]:
    """Microseconds of the best (or median) round of every side, and their ratios."""
    check_path(case)
    sides = {"reference": case.reference, "jaxmarshal": case.jaxmarshal}
    if case.floor is not None:
        sides["floor"] = case.floor
    # Rounds of every side last equally long: the first calls of a round find cold caches.
    number = {
        side: max(3, int(0.002 / seconds_per_call(call, 5))) for side, call in sides.items()
    }
    rounds: dict[str, list[float]] = {side: [] for side in sides}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for side, call in sides.items():
            rounds[side].append(seconds_per_call(call, number[side]))
    # With several devices a round also waits for what the one before left to other threads: its
    # best round is luck.
    best = {side: (median if case.devices > 1 else min)(rounds[side]) for side in sides}
    row: dict[str, Any] = {"case": case.name}
    row |= {side: value * 1e6 for side, value in best.items()}
    row["speedup"] = best["reference"] / best["jaxmarshal"]
    row["least_speedup"] = case.least_speedup
    if "floor" in best:
        row["over_floor"] = best["jaxmarshal"] / best["floor"]
        row["most_over_floor"] = case.most_over_floor
    return row


def meets(row: dict[str, Any]) -> bool:
    """Does a row of `measure` keep the bars of its case?"""
    fast = row["least_speedup"] is None or row["speedup"] >= row["least_speedup"]
    bar = row.get("most_over_floor")
    return fast and (bar is None or row["over_floor"] <= bar)
