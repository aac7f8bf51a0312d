"""Everything about one accelerator in one go.

    python .ci/gpu.py kit FOLDER
    python .ci/gpu.py run FOLDER [PLATFORM [TEST...]] [--only STEP,...]

    kit    where there is a network: build a wheel for this Python into FOLDER/kit, and download
           what the tests need beside JAX.
    run    where the accelerator is: install the kit into a folder of its own, beside the JAX that
           this Python has, and run self-check, tests and benchmarks. Needs no network.

Everything that `run` prints is under FOLDER/report, a file a step, and `summary.txt` says what
became of each. Checks and tests run beside each other; what measures runs alone, after them. All
takes nine minutes at most: a step that takes too long is interrupted, so that it says what it saw
so far, and the next begins. PLATFORM (cuda) is JAX's name; a plugin that
PJRT_NAMES_AND_LIBRARY_PATHS names will do. TEST: test files to run with the accelerator alone.
--only: the named steps alone, after `install`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ["pytest>=8", "pytest-xdist>=3", "hypothesis>=6", "cloudpickle", "rich"]
#: What is about several backends in one process, the accelerator's and the CPU's.
BESIDE_THE_CPU = [
    "values/test_backends.py", "gateway/test_stepping_aside.py", "whole/test_platforms.py"
]
#: Seconds that an interrupted step has for its last words.
GRACE = 15


class Step(NamedTuple):
    name: str
    command: list[str]
    platforms: str
    limit: int    # seconds


def kit(folder: Path) -> int:
    """Build and download."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    shutil.rmtree(folder / "kit", ignore_errors=True)
    for command in (
        ["wheel", "--no-deps", "--wheel-dir", str(folder / "kit"), str(ROOT)],
        ["download", "--only-binary", ":all:", "--dest", str(folder / "kit"), *NEEDED],
    ):
        subprocess.run([*pip, *command], check=True)
    return 0


def steps(folder: Path, platform: str, tests: list[str]) -> list[list[Step]]:
    """Groups of steps: those of a group run beside each other. The longest of each: 9 minutes."""
    python = sys.executable
    module = [python, "-m", "jaxmarshal"]
    report = folder / "report"
    never_slower = [*module, "bench", "--never-slower", "--quick", "--seconds", "0.2"]
    wheels = [str(path) for path in sorted((folder / "kit").glob("*.whl"))]
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade"]
    pytest = [python, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "--tb=short",
              "--dist", "worksteal", "-m", "not slow",
              "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]  # fmt: skip
    beside = [str(ROOT / "tests" / name) for name in BESIDE_THE_CPU]
    workers = str(max((os.cpu_count() or 2) - 3, 1))
    both = f"{platform},cpu"
    checks = [
        Step("doctor", [*module, "doctor"], both, 60),
        Step("check-alone", [*module, "doctor", "--check"], platform, 220),
        Step("check", [*module, "doctor", "--check"], both, 220),
        Step("tests", [*pytest, "-n", "2", *beside], both, 220),
    ]
    if tests:
        checks.append(Step("tests-alone", [*pytest, "-n", workers, *tests], platform, 220))
    return [
        [Step("install", [*install, "--target", str(folder / "site"), *wheels], both, 40)],
        checks,
        [Step("never-slower-alone", [*never_slower, "--json", str(report / "alone.json")],
              platform, 80)],
        [Step("never-slower", [*never_slower, "--json", str(report / "both.json")], both, 70)],
        [Step("bench", [*module, "bench", "--quick", "--seconds", "0.3",
                        "--json", str(report / "bench.json")], both, 70)],
    ]  # fmt: skip


def begin(step: Step, folder: Path) -> subprocess.Popen[bytes]:
    """Start a step, what it prints in a file of its own."""
    report = folder / "report"
    with (report / f"{step.name}.txt").open("w", encoding="utf-8") as output:
        output.write(f"$ JAX_PLATFORMS={step.platforms} {' '.join(step.command)}\n")
        output.flush()
        return subprocess.Popen(
            step.command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            cwd=report, start_new_session=True,
            env={**os.environ, "JAX_PLATFORMS": step.platforms, "PYTHONPATH": str(folder / "site"),
                 "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip


def finish(step: Step, process: subprocess.Popen[bytes], started: float) -> str:
    """Wait for a step as long as it may take; how it ended."""
    try:
        status = process.wait(max(started + step.limit - time.perf_counter(), 0))
        outcome = "passed" if status == 0 else f"FAILED ({status})"
    except subprocess.TimeoutExpired:
        outcome = f"ENDED after {step.limit} s"
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)    # and whatever it started
    process.wait()
    return f"{outcome:<16} {step.name:<20} {time.perf_counter() - started:4.0f} s"


def run(folder: Path, platform: str, tests: list[str], only: list[str]) -> int:
    """Run every step."""
    report = folder / "report"
    for old in (report, folder / "site"):
        shutil.rmtree(old, ignore_errors=True)
    report.mkdir(parents=True)
    lines = []
    for group in steps(folder, platform, [str(Path(test).resolve()) for test in tests]):
        group = [step for step in group if not only or step.name in ("install", *only)]
        started = time.perf_counter()
        running = [(step, begin(step, folder)) for step in group]
        for step, process in running:
            lines.append(finish(step, process, started))
            print(lines[-1], flush=True)
            (report / "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if all(line.startswith("passed") for line in lines) else 1


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("what", choices=("kit", "run"))
    parser.add_argument("folder", type=lambda name: Path(name).resolve())
    parser.add_argument("platform", nargs="?", default="cuda")
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--only", type=lambda names: names.split(","), default=[])
    asked = parser.parse_args()
    if asked.what == "kit":
        return kit(asked.folder)
    return run(asked.folder, asked.platform, asked.tests, asked.only)


if __name__ == "__main__":
    sys.exit(main())
