"""Is a call slower than with plain JAX? The promise, measured on the backend at hand.

Both sides of a row take turns, and what counts is the median of the ratios of rounds that follow
each other, in processor time of the thread that calls: what else the machine does is then hardly
seen. A row in doubt is measured again, for longer each time, and one that is slower then once more
in a process of its own.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from jaxmarshal import fronts, stats
from jaxmarshal._jax import patching
from jaxmarshal.benchmarks import measure, suite
from jaxmarshal.benchmarks.case import Case, Sides
from jaxmarshal.fronts import filtered

Counts = Mapping[str, Mapping[str, Any]]    # of `stats()`

#: JAX's time over ours has to be this at least: three per cent are what a look at a call may cost.
LEAST = 0.97
#: How often a row in doubt is measured, each time twice as long as the last time.
ATTEMPTS = 4
#: Calls before the measurement: a function that cannot be fast is left alone after some.
WARM_UP = 80
#: Rounds of each side at least.
ROUNDS = 15
#: Of a standard error, beyond which a difference is no noise.
CERTAIN = 3.0

#: One row for each way into each entry point: narrow, wide and refused.
QUICK = {
    "device_put": ("np f32[8]", "list of 100 numpy", "list of 100 arrays",
                   "array f32[8,8] to a Format", "refused (src=)"),
    "shard_args": ("1 arrays", "10 numpy", "batched_device_put of 1 numpy",
                   "batched_device_put_impl of 1 numpy",
                   "make_array_from_process_local_data, dict of 2 numpy"),
    "execute": ("results of 2 buffers", "unsafe_call, 1 arrays", "unsafe_call, 100 arrays",
                "MeshExecutable.call, 1 arrays", "MeshExecutable.call, 100 arrays"),
    "ahead_of_time": ("list of 1 arrays", "list of 100 arrays", "list of 1000 arrays",
                      "list of 4 numpy, left to C++", "dict of 200 arrays", "refused (callback)"),
    "jit": ("list of 1 arrays", "list of 10 arrays", "list of 100 arrays", "list of 1000 arrays",
            "list of 4 numpy", "list of 10 arrays and a numpy",
            "an array and a long numpy, left to C++",
            "list of 1 arrays, 100 shapes in turns", "dict of 200 arrays",
            "an array and a scalar that changes"),
    "eager": ("neg_p.bind", "lax.add", "x[0]", "jnp.zeros(3)", "jnp.ones(3)", "jnp.full(3, 1.5)",
              "x + x", "x[i:i + 8], another i each time", "x[numpy rows], others each time"),
    "survey": ("x.sum()", "jnp.where", "x[mask]", "jnp.einsum", "nn.relu", "float(scalar)",
               "jax.device_get(dict of 3)", "keys[0]", "scipy.special.erf"),
    "asarray": ("jnp.asarray(np f32[8])", "jnp.asarray(np f32[8], f32)",
                "jnp.asarray(np f32[8], device=)", "jnp.array(np f32[8])"),
    "fronts": ("filter_jit, dict of 1 arrays", "equinox_filter_jit, dict of 1 arrays",
               "nnx_jit, dict of 1 arrays"),
    "refused": ("MeshExecutable.call of a callback", "unsafe_call of a callback",
                "jnp.array of a list of numpy", "x[numpy mask]", "jnp.zeros on a device",
                "jnp.ones on a device", "jnp.full on a device", "lax.neg of numpy",
                "lax.mul, another number each time",
                "make_array_from_process_local_data of an array"),
    "packed": ("2 × f32[8], not packed", "2 × f32[8], not packed, donated",
               "4 × f32[64,64], not packed", "4 × f32[64,64], not packed, donated",
               "7 of several dtypes, not packed", "4 × f32[8]", "4 × f32[8], donated"),
    "meshes": ("lax.add", "x[0]", "jnp.zeros(8)", "jnp.asarray(np f32[8])",
               "device_put of numpy to a spec"),
}  # fmt: skip

#: The rows of `doctor --check`.
FEW = {
    "device_put": ("np f32[8]",),
    "ahead_of_time": ("list of 1 arrays", "list of 100 arrays"),
    "jit": ("list of 1 arrays", "list of 100 arrays"),
    "eager": ("lax.add",),
}


@dataclass(frozen=True)
class Row:
    """What was found about one case.

    Attributes:
      group, name: of the case.
      entry: its entry point; of a call that is there for what it is, the one that counted most.
      ratio: JAX's time over jaxmarshal's, the median of neighbouring rounds.
      error: its standard error.
      hits, misses: calls of the entry point in the measurement, by jaxmarshal.
    """

    group: str
    name: str
    entry: str
    ratio: float
    error: float
    hits: int = 0
    misses: int = 0

    @property
    def slower(self) -> bool:
        """Is it slower beyond doubt?"""
        return self.ratio + CERTAIN * self.error < LEAST

    @property
    def doubtful(self) -> bool:
        """Is it slower as it stands, or may it be?"""
        return self.ratio < LEAST


def select(names: dict[str, tuple[str, ...]] | None) -> list[tuple[str, Case]]:
    """The cases with these names, by group; all with None."""
    chosen = suite.select(None if names is None else names)
    return [
        (group, case) for group, case in chosen
        if names is None or case.name in names[group]
    ]  # fmt: skip


def without_rows(rows: Iterable[Row | Case]) -> list[str]:
    """The active entry points, and fronts of libraries that are there, that no row is about."""
    measured = {row.entry for row in rows}
    active = [entry.name for entry in patching.ENTRY_POINTS if entry.active]
    active += [front.name for front in fronts.FRONTS if fronts.why_inactive(front) is None]
    return [name for name in (*active, filtered.NAME) if name not in measured]


def ratio_of(over: list[float], under: list[float]) -> tuple[float, float]:
    """The median of the ratios of two lists of rounds in turns, and its standard error."""
    ratios = [a / b for a, b in zip(over, under, strict=False)]
    middle = median(ratios)
    spread = 1.4826 * median([abs(ratio - middle) for ratio in ratios])
    return middle, 1.2533 * spread / len(ratios) ** 0.5


def _calls_before(number: int) -> int:
    """Calls before those of a round, after installing has changed classes and modules.

    CPython adapts its bytecode to them anew, each instruction after some fifty executions.
    """
    return max(30, min(number, 120))


def _one_round(sides: Sides, side: str, call: Callable[[], Any], number: int) -> float:
    """Processor seconds of one call."""
    with sides.around(side):
        for _ in range(_calls_before(number) if sides.installed else 2):
            call()
        return processor_seconds(call, number)


def processor_seconds(call: Callable[[], Any], number: int) -> float:
    """Seconds of the calling thread for one of so many calls."""
    start = time.thread_time()
    for _ in range(number):
        call()
    return (time.thread_time() - start) / number


def take_turns(
    sides: Sides, calls: dict[str, Callable[[], Any]], seconds: float, least: int
) -> dict[str, list[float]]:
    """Rounds of equally many calls, the sides in turns, each as often first as second."""
    quickest = min(_one_round(sides, side, call, 5) for side, call in calls.items())
    number = max(3, int(measure.ROUND / max(quickest, 1e-7)))
    found: dict[str, list[float]] = {side: [] for side in calls}
    order = list(calls)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[order[0]]) < least:
        for side in order:
            found[side].append(_one_round(sides, side, calls[side], number))
        order.reverse()
    return found


def _built(case: Case) -> tuple[Sides, dict[str, Callable[[], Any]]]:
    """A case made anew, with the warm call of each side."""
    sides = measure.build(case)
    calls: dict[str, Callable[[], Any]] = {
        "reference": sides.reference, "jaxmarshal": sides.jaxmarshal,
    }  # fmt: skip
    for side, call in calls.items():
        with sides.around(side):
            for _ in range(WARM_UP):
                call()
    return sides, calls


def counted(case: Case, before: Counts, after: Counts) -> tuple[str, int, int]:
    """The entry point of a row, with the hits and misses that it counted meanwhile."""
    gained = {
        entry: tuple(after[entry][what] - before[entry][what] for what in ("hits", "misses"))
        for entry in after
    }  # fmt: skip
    entry = case.entry if case.watched else max(gained, key=lambda name: gained[name])
    if not any(gained[entry]):
        entry = case.entry
    return entry, *gained[entry]


def judge(group: str, case: Case, seconds: float) -> Row:
    """Measure one case for as long as it takes to be sure; raises `NotHere`.

    Where the objects of one side lie in memory makes some per cent, so each attempt has others.
    """
    row = None
    for attempt in range(ATTEMPTS):
        sides, calls = _built(case)
        before = stats()
        gc.collect()
        rounds = take_turns(sides, calls, seconds * 2**attempt, ROUNDS * 2**attempt)
        entry, hits, misses = counted(case, before, stats())
        ratio, error = ratio_of(rounds["reference"], rounds["jaxmarshal"])
        row = Row(group, case.name, entry, ratio, error, hits, misses)
        if not row.doubtful:
            break
    assert row is not None
    return row


def case_for_new_process(group: str, name: str) -> Case:
    """The case with this name, for a process that begins with it."""
    patching.uninstall()    # JAXMARSHAL=on may have installed
    [(_, case)] = select({group: (name,)})
    return case


def _judge_named(group: str, name: str, seconds: float) -> Row:
    """`judge` of the case with this name; what a new process does."""
    return judge(group, case_for_new_process(group, name), seconds)


def _confirmed(row: Row, seconds: float) -> Row:
    """A slower row, or that of a process whose code and data lie elsewhere, if it is not there."""
    try:
        again: Row = measure.in_new_process(_judge_named, row.group, row.name, seconds)
    except Exception:    # for instance where this process has the device's memory
        return row
    return row if again.slower else again


def run(
    names: dict[str, tuple[str, ...]] | None, seconds: float
) -> Iterator[tuple[str, Row | None, str]]:
    """(case, its row or None, why there is none) for each case, one after the other."""
    for group, case in select(names):
        name = f"{group}: {case.name}"
        if not case.accelerated:
            yield name, None, "this entry point is not accelerated here"
        else:
            try:
                row = judge(group, case, seconds)
                yield name, _confirmed(row, seconds) if row.slower else row, ""
            except measure.NotHere as error:
                yield name, None, str(error)


def verdict(rows: list[Row]) -> str:
    """One line for a user."""
    worst = min(rows, key=lambda row: row.ratio, default=None)
    if worst is None:
        return "speed: nothing could be measured"
    slower = [row for row in rows if row.slower]
    if slower:
        text = ", ".join(f"{row.group}: {row.name} ({row.ratio:.2f} x)" for row in slower)
        return (
            f"speed: SLOWER than plain JAX on this backend: {text}. Set JAXMARSHAL=off in the "
            "environment to run without jaxmarshal, and please report it"
        )
    return (
        f"speed: nothing measured is slower than plain JAX on this backend; the least gain is "
        f"{worst.ratio:.2f} x ({worst.group}: {worst.name})"
    )
