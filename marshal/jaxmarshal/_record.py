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

from jaxmarshal import _count, _install, api

#: Frames below this depth are told as one, or a deep recursion would be a deep document.
MOST_FRAMES = 250


#: Frames of the counting itself, beside the entry points' own.
_COUNTING = (("stats", api.__file__), ("perf_counter_ns", "<built-in>"))


def _kind(name: str, file: str, parent: str) -> str:
    """Whose code a frame is, for its colour."""
    if file == _count.__file__:
        return "entry point" if name in _ENTRY_POINTS else "counting"
    if parent == "counting" or (parent == "entry point" and (name, file) in _COUNTING):
        return "counting"
    if file.startswith(_count.JAX):
        return "JAX"
    if file.startswith("<") or file.startswith(_LIBRARIES):
        return "library"
    return "script"


_ENTRY_POINTS = frozenset(entry.name for entry in _install.ENTRY_POINTS)
_LIBRARIES = tuple(
    sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def tree(records: list[tuple[list[str], float]]) -> dict[str, Any]:
    """The samples of pyinstrument as a flame graph: equal stacks together, times in seconds.

    A frame is `{name, file, line, kind, time, children}`; `line` is that of its definition, and
    `time` includes the children.
    """
    root = _frame("all", "", 0, "library")
    for stack, seconds in records:
        frame = root
        frame["time"] += seconds
        for information in stack[:MOST_FRAMES]:
            key = information.partition("\x01")[0]
            child = frame["children"].get(key)
            if child is None:
                name, file, line = (*key.split("\x00"), "", "0")[:3]
                if file == "<thread>":  # its number, which differs from run to run
                    line = "0"
                kind = _kind(name, file, frame["kind"])
                if kind == "counting":  # one frame for all of it
                    key, name, file, line = kind, f"[{kind}]", "", "0"
                child = frame["children"].setdefault(key, _frame(name, file, int(line or 0), kind))
            child["time"] += seconds
            frame = child
            if frame["kind"] == "counting":
                break
    _listed(root)
    return root


def _frame(name: str, file: str, line: int, kind: str) -> dict[str, Any]:
    return {"name": name, "file": file, "line": line, "kind": kind, "time": 0.0, "children": {}}


def _listed(root: dict[str, Any]) -> None:
    """Let `children` be lists, the slowest first."""
    frames = [root]
    while frames:
        frame = frames.pop()
        children = sorted(frame["children"].values(), key=lambda child: -child["time"])
        frame["children"] = children
        frames += children


def start(configuration: dict[str, Any]) -> None:
    """Record from here to the end of the process, and write it to the file that was asked for."""
    from pyinstrument import Profiler

    profiler = None
    if threading.current_thread() is threading.main_thread():
        profiler = Profiler(interval=configuration["interval"], async_mode="disabled")
    _count.wrap_all(_count.counted)
    process, begin = os.getpid(), time.perf_counter()

    def finish() -> None:
        if os.getpid() != process:  # a copy that a fork has made
            return
        seconds = time.perf_counter() - begin
        records = profiler.stop().frame_records if profiler is not None else []
        result = {
            "seconds": seconds,
            "installed": sorted(_install.installed_names()),
            "sites": _count.results(),
            "stats": api.stats(),
            "profile": tree(records),
        }
        Path(configuration["file"]).write_text(json.dumps(result))

    atexit.register(finish)
    if profiler is not None:
        profiler.start()
