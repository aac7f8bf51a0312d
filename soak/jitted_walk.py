"""Random walks over jitted functions, from many threads, while jaxmarshal comes and goes.

    python soak/jitted_walk.py --seconds 60 --threads 8 [--seed 0]

Functions that were jitted before `install()` and afterwards, shared and of one thread alone, are
called with shapes, dtypes, numbers and static arguments in turns; copied, pickled, cleared and
dropped. One thread installs and uninstalls, collects garbage, and clears JAX's caches. What numpy
makes of the same arguments is the oracle. A child process, forked while functions are accelerated
and before there is a backend, walks beside its parent. Prints one line of JSON; exit status 1 if
there was a divergence, or something was left.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import multiprocessing
import pickle
import random
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from stress import TOLD, live

import jaxmarshal
from jaxmarshal._core.entries import jit
from jaxmarshal._core.values import live_objects

SHAPES = [(1,), (2,), (7,), (3, 1, 2)]
DTYPES = [np.float32, np.int32]
#: Calls of a function in a row.
MOST_CALLS = 60


class Kind:
    """A kind of function: how it is made, what it is called with, and what it returns."""

    def __init__(
        self,
        program: Callable[[], Callable[..., Any]],
        arguments: Callable[[random.Random, np.ndarray], tuple[tuple, tuple]],
        wanted: Callable[..., list[np.ndarray]],
        **options: Any,
    ) -> None:
        self.program, self.arguments, self.wanted, self.options = (
            program, arguments, wanted, options,
        )  # fmt: skip

    def make(self, own: bool = False) -> Any:
        """A jitted function of a function of its own."""
        return (jaxmarshal.jit if own else jax.jit)(self.program(), **self.options)


def _array(rng: random.Random, data: np.ndarray) -> Any:
    """The data on the device, or as they are."""
    return data if rng.random() < 0.2 else jax.device_put(data)


KINDS = [
    Kind(
        lambda: lambda x: jax.lax.add(x, x),
        lambda rng, data: ((_array(rng, data),), (data,)),
        lambda x: [x + x],
    ),
    Kind(
        lambda: lambda x, n: [x * n] * n,
        lambda rng, data: ((_array(rng, data), n := rng.randint(1, 3)), (data, n)),
        lambda x, n: [x * np.asarray(n, x.dtype)] * n,
        static_argnums=1,
    ),
    Kind(
        lambda: lambda x, scale: x * scale,
        lambda rng, data: ((_array(rng, data), n := rng.randint(0, 40)), (data, n)),
        lambda x, n: [x * np.asarray(n, x.dtype)],
    ),
    Kind(
        lambda: lambda tree: {"sum": tree["a"] + tree["b"][0], "all": list(tree["b"])},
        lambda rng, data: (
            ({"b": [_array(rng, data)] * 2, "a": jax.device_put(data)},), (data,)
        ),
        lambda x: [x, x, x + x],
    ),
    Kind(
        lambda: lambda x, y: x - y,
        lambda rng, data: ((jax.device_put(data), jax.device_put(data + 1)), (data,)),
        lambda x: [-np.ones_like(x)],
        donate_argnums=1,
    ),
]  # fmt: skip


class Walk:
    """What the threads share."""

    def __init__(self, early: list[Any], seconds: float, seed: int) -> None:
        self.shared = early    # (kind, function), some of them from before `install()`
        self.deadline = time.monotonic() + seconds
        self.seed = seed
        self.calls: dict[int, int] = {}
        self.divergences: list[str] = []
        self.own: list[Any] = []    # weak references to functions of one thread
        self.pickled = _refusal(early[0][1])

    def going(self) -> bool:
        return time.monotonic() < self.deadline and len(self.divergences) < TOLD

    def call(self, rng: random.Random, kind: Kind, function: Any) -> int:
        """Some calls, each compared with numpy."""
        number = rng.randint(1, MOST_CALLS)
        shape, dtype = rng.choice(SHAPES), rng.choice(DTYPES)
        for _ in range(number):
            if rng.random() < 0.2:
                shape, dtype = rng.choice(SHAPES), rng.choice(DTYPES)
            data = (np.arange(np.prod(shape)).reshape(shape) + rng.randint(0, 9)).astype(dtype)
            args, known = kind.arguments(rng, data)
            found = [np.asarray(x) for x in jax.tree.leaves(function(*args))]
            wanted = kind.wanted(*known)
            if len(found) != len(wanted) or any(
                a.dtype != b.dtype or a.shape != b.shape or (a != b).any()
                for a, b in zip(found, wanted, strict=True)
            ):
                self.divergences.append(f"{KINDS.index(kind)} of {shape}: {found} not {wanted}")
        return number

    def step(self, rng: random.Random) -> int:
        """One step of a thread; how many calls it made."""
        kind, function = rng.choice(self.shared)
        what = rng.random()
        if what < 0.8:
            return self.call(rng, kind, function)
        if what < 0.81:
            function.clear_cache()
            return 0
        if what < 0.86:
            return self.call(rng, kind, copy.copy(function))
        if what < 0.9:
            if _refusal(function) != self.pickled:
                self.divergences.append(f"pickled: {_refusal(function)}")
            return 0
        kind = rng.choice(KINDS)
        mine = kind.make(own=rng.random() < 0.5)
        self.own.append(weakref.ref(mine))
        done = self.call(rng, kind, mine)
        if rng.random() < 0.3:
            mine.clear_cache()
            done += self.call(rng, kind, mine)
        return done

    def walk(self, number: int) -> None:
        """One thread."""
        rng = random.Random(f"{self.seed} {number}")
        done = 0
        try:
            while self.going():
                done += self.step(rng)
        except Exception as error:
            self.divergences.append(f"{type(error).__name__}: {str(error)[:300]}")
        self.calls[number] = done

    def shake(self) -> None:
        """What happens meanwhile."""
        rng = random.Random(f"{self.seed} shake")
        first = len(self.shared)

        def replace() -> None:
            """One more function, in place of another one that was made on the way."""
            if len(self.shared) >= 2 * first:
                self.shared.pop(rng.randrange(first, len(self.shared)))
            kind = rng.choice(KINDS)
            self.shared.append((kind, kind.make()))

        shakes = [
            jaxmarshal.uninstall, jaxmarshal.install, lambda: jaxmarshal.install("jit"),
            gc.collect, replace,
        ]  # fmt: skip
        while self.going():
            time.sleep(rng.random() / 10)
            rng.choice(shakes)()
            if rng.random() < 0.01:
                jax.clear_caches()


def _refusal(function: Any) -> str:
    """How a jitted function refuses to be pickled."""
    try:
        return f"{len(pickle.dumps(function)) > 0}"
    except Exception as error:
        return type(error).__name__


def walk(early: list[Any], seconds: float, threads: int, seed: int) -> dict[str, Any]:
    """Walk for so many seconds; what was seen, as plain data."""
    before = live()
    plans = live_objects.snapshot()["live_plans"] if live_objects.debug_build() else 0
    shared = Walk(early, seconds, seed)
    workers = [threading.Thread(target=shared.walk, args=[i]) for i in range(threads)]
    workers.append(threading.Thread(target=shared.shake))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    jaxmarshal.uninstall()
    if any(jit.uses_plans(function) for _, function in shared.shared):
        shared.divergences.append("a function tries its plans after uninstall()")
    early.clear()
    jax.clear_caches()
    after = live()
    left = {name: after[name] - before[name] for name in after}
    left["functions"] = sum(reference() is not None for reference in shared.own)
    if live_objects.debug_build():
        left["plans"] = max(0, live_objects.snapshot()["live_plans"] - plans)
    return {
        "python": sys.version.split()[0], "jax": jax.__version__, "threads": threads,
        "seconds": seconds, "calls": sum(shared.calls.values()), "faults": 0,
        "divergences": shared.divergences, "left": left,
        "hits": jaxmarshal.stats()["jit"]["hits"],
    }  # fmt: skip


def in_child(queue: Any, early: list[Any], seconds: float, threads: int, seed: int) -> None:
    queue.put(walk(early, seconds, threads, seed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    early = [(kind, kind.make()) for kind in KINDS]
    jaxmarshal.install()
    early += [(kind, kind.make()) for kind in KINDS]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(
        target=in_child, args=(queue, early, options.seconds, 2, options.seed + 1)
    )
    child.start()
    jaxmarshal.uninstall()
    for kind, function in early[:3]:    # known to jaxlib before plans are
        Walk(early, 0, 0).call(random.Random(0), kind, function)
    report = walk(early, options.seconds, options.threads, options.seed)
    child.join(options.seconds + 60)
    forked = queue.get(timeout=1) if child.exitcode == 0 else None
    if forked is None:
        report["divergences"].append(f"the forked process ended with {child.exitcode}")
        child.kill()
    else:
        report["divergences"] += forked["divergences"]
        for name in ("calls", "hits", "threads"):
            report[name] += forked[name]
        report["left"] = {k: n + forked["left"][k] for k, n in report["left"].items()}
    print(json.dumps(report))
    lost = not report["hits"] or any(report["left"].values())
    return 1 if lost or report["divergences"] else 0


if __name__ == "__main__":
    sys.exit(main())
