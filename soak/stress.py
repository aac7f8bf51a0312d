"""Many threads, each calling at random what `cases` knows, while the process is shaken.

    python soak/stress.py --seconds 60 --threads 16 [--seed 0] [--no-gc]

One thread installs and uninstalls entry points, collects garbage, switches the collector off and
on, and clears JAX's caches; all of them raise errors, donate and delete. Prints one line of JSON:
calls, divergences, what was left alive, and how much memory the process took on the way. Exit
status 1 if there was a divergence or something was left.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax
from cases import Case, cases

import jaxmarshal
from jaxmarshal._core.placement.host_data import HostBuffer
from jaxmarshal._core.plans.plan import Scalar
from jaxmarshal._core.replay.tapes import Step
from jaxmarshal._core.values import live_objects
from jaxmarshal._jax import patching
from jaxmarshal.selfcheck.runner import first_difference

#: Divergences that are told of.
TOLD = 5
#: A soak of so many seconds also clears JAX's caches.
LONG = 60
PAGE = os.sysconf("SC_PAGE_SIZE")


def memory() -> int:
    """Bytes of memory that the process holds now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


class Gate:
    """Lets many threads in together, or one alone."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside = 0
        self.closed = False

    @contextlib.contextmanager
    def among_others(self) -> Iterator[None]:
        with self.changed:
            self.changed.wait_for(lambda: not self.closed)
            self.inside += 1
        try:
            yield
        finally:
            with self.changed:
                self.inside -= 1
                self.changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self.changed:
            self.closed = True
            self.changed.wait_for(lambda: self.inside == 0)
        try:
            yield
        finally:
            with self.changed:
                self.closed = False
                self.changed.notify_all()


class Soak:
    """What the threads share."""

    def __init__(self, chosen: list[Case], seconds: float, seed: int, collect: bool) -> None:
        self.cases = chosen
        self.deadline = time.monotonic() + seconds
        self.seed = seed
        self.collect = collect
        self.clears = seconds >= LONG
        self.calls: dict[int, int] = {}
        self.faults = 0
        self.divergences: list[str] = []
        #: A case may make several calls, some of which differ where JAX has just forgotten them.
        self.gate = Gate()

    def going(self) -> bool:
        return time.monotonic() < self.deadline and len(self.divergences) < TOLD

    def call(self, number: int) -> None:
        """One thread's calls."""
        rng = random.Random(f"{self.seed} {number}")
        done = raised = 0
        while self.going():
            case = rng.choice(self.cases)
            with self.gate.among_others():
                found = case.outcome()
            done += 1
            raised += found[0][0] == "raised"
            if found != case.expected:
                difference = first_difference(case.expected, found)
                self.divergences.append(f"{case.name}: {difference}")
        self.calls[number] = done
        self.faults += raised

    def shake(self) -> int:
        """What happens meanwhile; returns how often."""
        rng = random.Random(f"{self.seed} shake")
        names = sorted(patching.installed_names())
        turns = 0
        shakes = [
            jaxmarshal.uninstall,
            lambda: jaxmarshal.install(rng.sample(names, rng.randint(1, len(names)))),
            jaxmarshal.install, jaxmarshal.stats,
        ]  # fmt: skip
        if self.collect:
            shakes += [gc.collect, gc.disable, gc.enable]
        while self.going():
            time.sleep(rng.random() / 20)
            rng.choice(shakes)()
            turns += 1
            if self.clears and turns % 200 == 0:
                with self.gate.alone():
                    jax.clear_caches()
        jaxmarshal.install()
        return turns


def recorded() -> set[int]:
    """The ids of the arrays that recordings keep: constants, numbers, memory for host data."""
    found = set()
    for holder in gc.get_objects():
        if isinstance(holder, (HostBuffer, Scalar, Step)):
            for part in gc.get_referents(holder):
                found.update(map(id, part if isinstance(part, tuple) else [part]))
    return found


def live() -> dict[str, int]:
    """What can be left over: arrays of no recording, and in a debug build our own objects."""
    for _ in range(3):
        gc.collect()
    kept = recorded()
    found = {"arrays": sum(id(array) not in kept for array in jax.live_arrays())}
    if live_objects.debug_build():
        counters = live_objects.snapshot()
        found.update({k: v for k, v in counters.items() if k in ("live_slots", "live_tables")})
    return found


def soak(seconds: float, threads: int, seed: int, collect: bool) -> dict[str, Any]:
    """Soak for so many seconds; what was seen, as plain data."""
    chosen = cases(caches_cleared=seconds >= LONG)
    # Once through, so that all is compiled and what JAX keeps is there.
    warm = Soak(chosen, 1e9, seed, collect)
    for case in chosen:
        if case.outcome() != case.expected:
            warm.divergences.append(case.name)
    before = live()
    shared = Soak(chosen, seconds, seed, collect)
    shared.divergences += warm.divergences
    workers = [threading.Thread(target=shared.call, args=[i]) for i in range(threads)]
    shaken: list[int] = []
    workers.append(threading.Thread(target=lambda: shaken.append(shared.shake())))
    sizes = []
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        sizes.append(memory())
        time.sleep(seconds / 40)
    for worker in workers:
        worker.join()
    gc.enable()
    after, kept = live(), sum(map(recorded().__contains__, map(id, jax.live_arrays())))
    # A recording keeps a few; one that were made again and again would keep more and more.
    if kept > len(chosen):
        shared.divergences.append(f"recordings keep {kept} arrays")
    half, last = sizes[len(sizes) // 2], sizes[-1]
    return {
        "python": sys.version.split()[0], "jax": jax.__version__, "cases": len(chosen),
        "threads": threads, "seconds": seconds, "calls": sum(shared.calls.values()),
        "faults": shared.faults, "shakes": sum(shaken), "divergences": shared.divergences,
        "left": {name: after[name] - before[name] for name in after}, "recorded": kept,
        "rss_half_mib": half / 2**20, "rss_end_mib": last / 2**20,
        "hits": sum(entry["hits"] for entry in jaxmarshal.stats().values()),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-gc", action="store_true", help="the collector is off throughout")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.no_gc:
        gc.disable()
    found = soak(options.seconds, options.threads, options.seed, not options.no_gc)
    print(json.dumps(found))
    return 1 if found["divergences"] or any(found["left"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
