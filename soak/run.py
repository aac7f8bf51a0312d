"""The soak: everything that shakes jaxmarshal for longer than a test may take.

    python soak/run.py [--minutes 20] [--json FILE]      (soak/figures.json: what docs/ show)
    python soak/run.py --short        about two minutes, as in CI

The random walk runs beside the other parts, which follow each other, all in processes of their own.
Prints a table; exit status 1 if a part failed, which its output then says.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: Steps of the random walk in a minute; what a walk compiles it compiles once.
STEPS_PER_MINUTE = 5000


@dataclass
class Part:
    """One part: what it is called, how it is started, and for how much of the time."""

    name: str
    share: float
    arguments: list[str]
    flags: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    steps: bool = False
    short: bool = True    # is it part of the short form?

    def run(self, seconds: float) -> dict[str, Any]:
        """What it reported."""
        seconds = max(3, seconds * self.share)
        steps = str(int(STEPS_PER_MINUTE * seconds / 60))
        values = {
            "seconds": seconds,
            "most": max(4, int(seconds / 5)),    # allocations of a call
            "workers": 2 if seconds < 10 else 4,
        }
        arguments = [argument.format(**values) for argument in self.arguments]
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, *self.flags, *arguments], cwd=HERE, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **self.environment, "JAXMARSHAL_SOAK_STEPS": steps},
        )  # fmt: skip
        report: dict[str, Any] = {"calls": int(steps), "divergences": []} if self.steps else {}
        for line in done.stdout.splitlines():
            if line.startswith('{"'):
                report = json.loads(line)
        report |= {"part": self.name, "took": round(time.monotonic() - started)}
        report["passed"] = done.returncode == 0
        if done.returncode:
            report["output"] = done.stdout[-6000:]
        return report


WALK = Part(
    "random walk, steps", 1,
    ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "test_machine.py"], steps=True,
)  # fmt: skip
PARTS = [
    Part("16 threads", 0.25, ["stress.py", "--seconds", "{seconds}"], short=False),
    Part(
        "16 threads, no collector", 0.1, ["stress.py", "--seconds", "{seconds}", "--no-gc"],
        short=False,
    ),
    Part(
        "16 threads, PYTHONMALLOC=debug, -X dev", 0.15, ["stress.py", "--seconds", "{seconds}"],
        ["-X", "dev"], {"PYTHONMALLOC": "debug"},
    ),
    Part(
        "forked workers", 0.1,
        ["workers.py", "fork", "--seconds", "{seconds}", "--workers", "{workers}"],
    ),
    Part(
        "spawned workers", 0.1, ["workers.py", "spawn", "--seconds", "{seconds}"], short=False
    ),
    Part(
        "jitted functions, 8 threads, one process forked", 0.2,
        ["jitted_walk.py", "--seconds", "{seconds}"],
    ),
    Part("allocations that fail", 0.3, ["faults.py", "--most", "{most}"]),
]  # fmt: skip


def cell(report: dict[str, Any], name: str) -> str:
    value = report.get(name)
    if name == "left":
        return str(sum(value.values())) if value else ""
    if name == "divergences":
        return "" if value is None else str(len(value))
    return "" if value is None else str(value)


def table(reports: list[dict[str, Any]]) -> str:
    """The reports as a table in Markdown."""
    lines = [
        "| part | calls | faults | divergences | left over | MiB at half time and at the end | s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for report in reports:
        memory = ""
        if "rss_end_mib" in report:
            memory = f"{report['rss_half_mib']:.0f}, {report['rss_end_mib']:.0f}"
        cells = [cell(report, name) for name in ("calls", "faults", "divergences", "left")]
        verdict = "" if report["passed"] else " (FAILED)"
        lines.append(
            f"| {report['part']}{verdict} | {' | '.join(cells)} | {memory} | {report['took']} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--short", action="store_true", help="a minute or two in all")
    parser.add_argument("--json", metavar="FILE", help="write the reports into a file")
    parser.add_argument("--from", metavar="FILE", dest="read", help="only show such a file again")
    options = parser.parse_args()
    if options.read:
        print(table(json.loads(Path(options.read).read_text(encoding="utf-8"))["reports"]))
        return 0
    seconds = 25 if options.short else 60 * options.minutes
    parts = [part for part in PARTS if part.short or not options.short]
    if importlib.util.find_spec("_testcapi") is None:
        print("NOT DONE: allocations that fail; this Python has no _testcapi")
        parts = [part for part in parts if part.arguments[0] != "faults.py"]
    with ThreadPoolExecutor() as beside:
        walk = beside.submit(WALK.run, seconds)
        reports = []
        for part in parts:
            print(f"{part.name} …", flush=True)
            reports.append(part.run(seconds))
        reports.append(walk.result())
    print()
    print(table(reports))
    for report in reports:
        if not report["passed"]:
            print(f"\n{report['part']}:\n{report.get('output', '')}")
    if options.json:
        versions = next(r for r in reports if "jax" in r)
        document = {"python": versions["python"], "jax": versions["jax"], "reports": reports}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(report["passed"] for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
