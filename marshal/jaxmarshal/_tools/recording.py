"""What `compare` records in the process of the user's script: a profile, and counts."""

from __future__ import annotations

import atexit
import json
import os
import sysconfig
import threading
import time
from pathlib import Path
from typing import Any

from jaxmarshal import api, fronts
from jaxmarshal._jax import patching
from jaxmarshal._tools import call_sites, first_calls, front_call_sites

#: Frames below this depth are told as one, or a deep recursion would be a deep document.
MOST_FRAMES = 250


#: Frames of the counting itself, beside the entry points' own.
_COUNTING = (("perf_counter_ns", "<built-in>"), ("before", first_calls.__file__))
#: Where an import begins.
_IMPORT = ("_find_and_load", "<frozen importlib._bootstrap>")


def _kind(name: str, file: str, parent: str) -> str:
    """Whose code a frame is, for its colour."""
    if file in _COUNTERS:
        return "entry point" if name in _ENTRY_POINTS or name in call_sites.frames else "counting"
    if parent == "counting" or (parent == "entry point" and (name, file) in _COUNTING):
        return "counting"
    if file.startswith(call_sites.JAX):
        return "JAX"
    if file.startswith("<") or file.startswith(_LIBRARIES):
        return "library"
    return "script"


_COUNTERS = (call_sites.__file__, front_call_sites.__file__)
_ENTRY_POINTS = front_call_sites.NAMES.union(entry.name for entry in patching.ENTRY_POINTS)
_LIBRARIES = (
    str(Path(__file__).parents[1]) + os.sep,    # which may stand in a checkout
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)


def samples(
    records: list[tuple[list[str], float]], first: list[first_calls.Interval], begin: float
) -> dict[str, Any]:
    """The samples of pyinstrument in the order in which they were taken.

    Args:
      records: stacks, and the seconds that each stands for.
      first: times of first calls, as `first_calls.union` returns them, in nanoseconds.
      begin: when the first sample began, by the same clock.

    Returns:
      A dict. `frames`: a list of `{name, file, line, kind}`, where `line` is that of the
      definition. `stacks`: for each sample the numbers of its frames, the outermost first.
      `seconds`: what each sample stands for. `steady`: for each, is it outside of first calls
      and of imports of libraries?
      Neighbours that are alike are one sample.
    """
    table = _Frames()
    result: dict[str, list[Any]] = {"stacks": [], "seconds": [], "steady": []}
    time = begin
    for stack, seconds in records:
        numbers, importing = table.numbers(stack)
        steady = not (importing or first_calls.within(first, time + seconds * 0.5e9))
        time += seconds * 1e9
        if result["stacks"] and (numbers, steady) == (result["stacks"][-1], result["steady"][-1]):
            result["seconds"][-1] += seconds
        else:
            for name, value in (("stacks", numbers), ("seconds", seconds), ("steady", steady)):
                result[name].append(value)
    return {"frames": table.frames, **result}


class _Frames:
    """All frames that were seen, each once."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self._numbers: dict[tuple[str, str, int, str], int] = {}

    def numbers(self, stack: list[str]) -> tuple[list[int], bool]:
        """The numbers of the frames of a stack, and whether it is in the import of a library.

        The counting is one frame, and the last.
        """
        found: list[int] = []
        importing = False
        kind = "library"
        for information in stack[:MOST_FRAMES]:
            name, file, number = (*information.partition("\x01")[0].split("\x00"), "", "0")[:3]
            line = int(number or 0)
            kind = _kind(name, file, kind)
            if kind == "script":  # a program that is imported runs all the same
                importing = False
            elif (name, file) == _IMPORT:
                importing = True
            if kind == "counting":  # one frame for all of it
                name, file, line = f"[{kind}]", "", 0
            elif file == "<thread>":  # its number, which differs from run to run
                line = 0
            elif kind == "entry point":  # the counting stands there
                file, line = call_sites.frames.get(name, ("", 0))
            key = name, file, line, kind
            if key not in self._numbers:
                self._numbers[key] = len(self.frames)
                self.frames.append({"name": name, "file": file, "line": line, "kind": kind})
            found.append(self._numbers[key])
            if kind == "counting":
                break
        return found, importing


def start(configuration: dict[str, Any]) -> None:
    """Record from here to the end of the process, and write it to the file that was asked for."""
    from pyinstrument import Profiler

    profiler = None
    if threading.current_thread() is threading.main_thread():
        profiler = Profiler(interval=configuration["interval"], async_mode="disabled")
    warmup = configuration["warmup"]
    phases = first_calls.Phases(warmup["calls"], warmup["seconds"])
    call_sites.count_all(phases)
    front_call_sites.count_all()
    process, begin = os.getpid(), time.perf_counter_ns()

    def finish() -> None:
        if os.getpid() != process:  # a copy that a fork has made
            return
        seconds = (time.perf_counter_ns() - begin) / 1e9
        records = profiler.stop().frame_records if profiler is not None else []
        result = {
            "seconds": seconds,
            "installed": sorted(patching.installed_names() | fronts.installed_names()),
            "sites": call_sites.results(),
            "stats": api.stats(),
            "samples": samples(records, first_calls.union(phases.intervals), sampled_from),
        }
        Path(configuration["file"]).write_text(json.dumps(result))

    atexit.register(finish)
    sampled_from = time.perf_counter_ns()
    if profiler is not None:
        profiler.start()
