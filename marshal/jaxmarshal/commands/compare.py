"""`python -m jaxmarshal compare`: where a script's host time goes, without and with jaxmarshal."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from jaxmarshal import _compare, _doctor, _flame, _script
from jaxmarshal._compare import OURS, PLAIN
from jaxmarshal.commands import CommandError, need

HELP = "run a script without and with jaxmarshal, and show where host time goes"
DESCRIPTION = (
    "Runs a script or module twice, with plain JAX and with jaxmarshal installed, and shows on the "
    "error output where host time went in each: calls, hits and misses of each call site, and the "
    "slowest functions. What the script itself prints appears twice."
)
MOST_SITES, MOST_FUNCTIONS = 20, 10


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = _script.USAGE.format("compare")
    _script.add_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything recorded there")
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write one page with both flame graphs and the table there",
    )
    parser.add_argument(
        "--interval",
        type=_interval,
        default=0.001,
        metavar="SECONDS",
        help="between two samples of the stack (default: 0.001)",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="DIR",
        help="run the script twice more under JAX's own profiler, traces in DIR/plain and "
        "DIR/jaxmarshal; while it runs, jaxmarshal leaves every call to JAX",
    )


def run(options: argparse.Namespace) -> int:
    target = _script.target(options)
    only = _script.entry_points(options)
    command = _script.command(target)
    if importlib.util.find_spec("pyinstrument") is None:
        raise need("pyinstrument")
    for path in (options.json, options.html):
        if path is not None:
            _check_writable(path)
    if options.trace is not None:
        _make_folder(options.trace)

    position = _position()
    runs: dict[str, tuple[int, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="jaxmarshal-") as folder:
        for name in (PLAIN, OURS):
            file = Path(folder) / name
            record = {"interval": options.interval, "file": str(file)}
            configuration: dict[str, Any] = {
                "install": name == OURS, "only": only, "record": record,
            }  # fmt: skip
            status = _run_once(name, command, configuration, position)
            if status == -signal.SIGINT:
                return 128 + signal.SIGINT
            runs[name] = status, json.loads(file.read_text()) if file.exists() else None
    failed = [status for status, _ in runs.values() if status]
    if options.trace is not None:
        for name in (PLAIN, OURS):
            trace = str(options.trace.absolute() / name)
            configuration = {"install": name == OURS, "only": only, "trace": trace}
            failed.append(_run_once(f"{name}, traced", command, configuration, position))

    for name, (status, recorded) in runs.items():
        if recorded is None and not status:
            raise CommandError(
                f"nothing was recorded in the {name} run: the script did not import JAX, "
                "or it ended without Python's exit handlers"
            )
    if all(recorded is not None for _, recorded in runs.values()):
        result = _result(target, options.interval, runs)
        _show(result)
        if options.json is not None:
            options.json.write_text(json.dumps(result) + "\n")
        if options.html is not None:
            options.html.write_text(_flame.page(result), encoding="utf-8")
    else:
        _say("no comparison: a run ended before it was recorded")
    return next((_exit_status(status) for status in failed if status), 0)


def _say(text: str) -> None:
    print(f"jaxmarshal compare: {text}", file=sys.stderr, flush=True)


def _check_writable(path: Path) -> None:
    """Find out before the script has run for an hour."""
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise CommandError(f"cannot write {str(path)!r}: {error.strerror}") from None
    if not existed:
        path.unlink()


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise CommandError(f"cannot write into {str(path)!r}: {error.strerror}") from None


def _position() -> int | None:
    """Where the standard input stands, if each run can be given it from there."""
    try:
        return os.lseek(0, 0, os.SEEK_CUR)
    except OSError:
        return None


def _run_once(
    name: str, command: list[str], configuration: dict[str, Any], position: int | None
) -> int:
    """One run in a process of its own, with these streams; its status, negative for a signal."""
    environment = _script.environment(configuration)
    if position is not None:
        os.lseek(0, position, os.SEEK_SET)
    _say(f"run: {name}")
    sys.stdout.flush()
    with subprocess.Popen(command, env=environment) as process:
        while True:
            try:
                status = process.wait()
                break
            except KeyboardInterrupt:  # the script has got it too, and decides
                continue
    if status < 0:
        _say(f"the run {name!r} was ended by {signal.Signals(-status).name}")
    elif status:
        _say(f"the run {name!r} ended with exit status {status}")
    return status


def _exit_status(status: int) -> int:
    """As a shell would report it."""
    return 128 - status if status < 0 else status


def _result(
    target: list[str], interval: float, runs: dict[str, tuple[int, Any]]
) -> dict[str, Any]:
    """Both runs as plain data: what `--json` writes."""
    (_, plain), (_, ours) = runs[PLAIN], runs[OURS]
    notes = list(_compare.NOTES)
    if not ours["installed"]:
        notes.insert(0, "jaxmarshal was not installed in the second run: see doctor.")
    return {
        "script": target,
        "versions": _doctor.versions(),
        "interval": interval,
        "notes": notes,
        "runs": {
            name: {
                "exit_status": status,
                **{key: recorded[key] for key in ("seconds", "installed", "stats", "profile")},
            }
            for name, (status, recorded) in runs.items()
        },
        "sites": _compare.sites(plain["sites"], ours["sites"]),
        "functions": _compare.functions(plain["profile"], ours["profile"]),
    }


def _show(result: dict[str, Any]) -> None:
    times = ", ".join(f"{name} {run['seconds']:.3f} s" for name, run in result["runs"].items())
    _say(f"{times}, from the end of JAX's import to the exit")
    for key, most, make, title in (
        ("sites", MOST_SITES, _compare.site_table, "calls of entry points"),
        ("functions", MOST_FUNCTIONS, _compare.function_table, "slowest functions, own time"),
    ):
        rows = result[key]
        if rows:
            _compare.print_table(title, make(rows[:most]))
        if key == "sites" and len(rows) > most:
            print(f"  and {len(rows) - most} more, see --json", file=sys.stderr)
    for note in result["notes"]:
        print(f"note: {note}", file=sys.stderr)
