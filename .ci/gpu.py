"""Everything about one accelerator in one go: python .ci/gpu.py kit|run FOLDER [PLATFORM]

    kit    where there is a network: build a wheel for this Python into FOLDER/kit, and download
           what the tests need beside JAX.
    run    where the accelerator is: install the kit into a folder of its own, beside the JAX that
           this Python has, and run self-check, tests and benchmarks. Needs no network.

Everything that `run` prints is under FOLDER/report, a file a step, and `summary.txt` says what
became of each. The steps take nine minutes at most; one that takes too long is ended, and the next
begins. PLATFORM (cuda) is JAX's name; a plugin that PJRT_NAMES_AND_LIBRARY_PATHS names will do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ["pytest>=8", "hypothesis>=6", "cloudpickle", "rich"]
TESTS = ["test_backends.py", "test_stepping_aside.py", "test_platforms.py"]


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


def steps(folder: Path, platform: str) -> list[tuple[str, list[str], str, int]]:
    """(name, command, JAX_PLATFORMS, seconds it may take); nine minutes together."""
    python = sys.executable
    module = [python, "-m", "jaxmarshal"]
    report = folder / "report"
    never_slower = [*module, "bench", "--never-slower", "--quick", "--seconds", "0.2"]
    wheels = [str(path) for path in sorted((folder / "kit").glob("*.whl"))]
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade"]
    tests = [str(ROOT / "tests" / name) for name in TESTS]
    pytest = [python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--rootdir", str(ROOT),
              "-c", str(ROOT / "pyproject.toml")]  # fmt: skip
    both = f"{platform},cpu"
    return [
        ("install", [*install, "--target", str(folder / "site"), *wheels], both, 40),
        ("doctor", [*module, "doctor"], both, 40),
        ("check-alone", [*module, "doctor", "--check"], platform, 90),
        ("check", [*module, "doctor", "--check"], both, 90),
        ("tests", [*pytest, *tests], both, 90),
        ("never-slower-alone", [*never_slower, "--json", str(report / "alone.json")], platform, 70),
        ("never-slower", [*never_slower, "--json", str(report / "both.json")], both, 60),
        ("bench", [*module, "bench", "--quick", "--seconds", "0.3",
                   "--json", str(report / "bench.json")], both, 60),
    ]  # fmt: skip


def run_step(report: Path, name: str, command: list[str], environment: dict, limit: int) -> str:
    """Run one step, what it prints in a file of its own; how it ended."""
    started = time.perf_counter()
    with (report / f"{name}.txt").open("w", encoding="utf-8") as output:
        output.write(f"$ JAX_PLATFORMS={environment['JAX_PLATFORMS']} {' '.join(command)}\n")
        output.flush()
        try:
            status = subprocess.run(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=limit,
                stdin=subprocess.DEVNULL, cwd=report,
            ).returncode  # fmt: skip
            outcome = "passed" if status == 0 else f"FAILED ({status})"
        except subprocess.TimeoutExpired:
            outcome = f"ENDED after {limit} s"
    return f"{outcome:<16} {name:<20} {time.perf_counter() - started:4.0f} s"


def run(folder: Path, platform: str) -> int:
    """Run every step."""
    report = folder / "report"
    for old in (report, folder / "site"):
        shutil.rmtree(old, ignore_errors=True)
    report.mkdir(parents=True)
    lines = []
    for name, command, platforms, limit in steps(folder, platform):
        environment = {
            **os.environ, "JAX_PLATFORMS": platforms, "PYTHONPATH": str(folder / "site"),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        lines.append(run_step(report, name, command, environment, limit))
        print(lines[-1], flush=True)
        (report / "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if all(line.startswith("passed") for line in lines) else 1


def main() -> int:
    arguments = sys.argv[1:]
    if len(arguments) < 2 or arguments[0] not in ("kit", "run"):
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[1]).resolve()
    if arguments[0] == "kit":
        return kit(folder)
    return run(folder, arguments[2] if len(arguments) > 2 else "cuda")


if __name__ == "__main__":
    sys.exit(main())
