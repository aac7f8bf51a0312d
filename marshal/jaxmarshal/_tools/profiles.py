"""Recorded samples as flame graphs, as a list of functions, and as a file for speedscope."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxmarshal._version import __version__

#: The names of the two runs.
PLAIN, OURS = "plain", "jaxmarshal"
#: What `recording.samples` returns, and a frame of a flame graph.
Samples = dict[str, Any]
Frame = dict[str, Any]

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def _frame(frame: dict[str, Any]) -> Frame:
    return {**frame, "time": 0.0, "children": {}}


def tree(samples: Samples, steady_only: bool = False) -> Frame:
    """A flame graph: equal stacks together.

    Args:
      samples: what was recorded.
      steady_only: leave out first calls, tracing and compiling.

    Returns:
      The outermost frame. A frame is `{name, file, line, kind, time, children}`; `time` is in
      seconds and includes the children, the slowest of which comes first.
    """
    root = _frame({"name": "all", "file": "", "line": 0, "kind": "library"})
    frames = samples["frames"]
    columns = samples["stacks"], samples["seconds"], samples["steady"]
    for stack, seconds, steady in zip(*columns, strict=True):
        if steady_only and not steady:
            continue
        frame = root
        frame["time"] += seconds
        for number in stack:
            frame = frame["children"].setdefault(number, _frame(frames[number]))
            frame["time"] += seconds
    for frame in walk(root):
        children = sorted(frame["children"].values(), key=lambda child: -child["time"])
        frame["children"] = children
    return root


def walk(root: Frame) -> Iterator[Frame]:
    """Every frame, each before its children."""
    waiting = [root]
    while waiting:
        frame = waiting.pop()
        yield frame
        waiting += frame["children"]


def functions(plain: Frame, ours: Frame) -> list[dict[str, Any]]:
    """The time in each function itself, without those that it calls, in both profiles."""
    times: dict[tuple[str, str, str], dict[str, float]] = {}
    for run, profile in ((PLAIN, plain), (OURS, ours)):
        for frame in walk(profile):
            own = frame["time"] - sum(child["time"] for child in frame["children"])
            key = frame["name"], frame["file"], frame["kind"]
            row = times.setdefault(key, {PLAIN: 0.0, OURS: 0.0})
            row[run] += max(own, 0.0)
    rows = [
        {"name": name, "file": file, "kind": kind, **row}
        for (name, file, kind), row in times.items()
    ]
    return sorted(rows, key=lambda row: -(row[PLAIN] + row[OURS]))


def speedscope(name: str, runs: dict[str, Samples]) -> dict[str, Any]:
    """A file that speedscope opens: the samples in the order in which they were taken.

    Args:
      name: what is shown as the title.
      runs: what was recorded, by the name of the run.

    Returns:
      The document, in speedscope's file format. Each run is two profiles on one time axis in
      seconds: everything, and the calls after the first ones, where the rest is empty.
    """
    numbers: dict[tuple[str, str, int], int] = {}
    frames: list[dict[str, Any]] = []
    profiles = []
    for run, samples in runs.items():
        shared = []
        for frame in samples["frames"]:
            key = frame["name"], frame["file"], frame["line"]
            if key not in numbers:
                numbers[key] = len(frames)
                place = {"file": key[1]} if key[1] else {}
                frames.append({"name": key[0], **place, **({"line": key[2]} if key[2] else {})})
            shared.append(numbers[key])
        for only_steady, title in ((True, f"{run}, after the first calls"), (False, run)):
            profiles.append(
                {
                    "type": "sampled",
                    "name": title,
                    "unit": "seconds",
                    "startValue": 0,
                    "endValue": sum(samples["seconds"]),
                    "samples": [
                        [] if only_steady and not steady else [shared[i] for i in stack]
                        for stack, steady in zip(samples["stacks"], samples["steady"], strict=True)
                    ],
                    "weights": samples["seconds"],
                }
            )
    return {
        "$schema": SCHEMA,
        "exporter": f"jaxmarshal {__version__}",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": profiles,
    }
