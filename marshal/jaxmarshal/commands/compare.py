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

from jaxmarshal._reports import doctor
from jaxmarshal._tools import comparison, comparison_text, flame, launch, profiles
from jaxmarshal._tools.profiles import OURS, PLAIN
from jaxmarshal.commands import CommandError, need

HELP = "run a script without and with jaxmarshal, and show where host time goes"
DESCRIPTION = (
    "Runs a script or module twice, with plain JAX and with jaxmarshal installed. Shows on the "
    "error output where host time went: the calls of each jitted function and each call site, how "
    "many were fast, why others were not, and the slowest functions. Calls that trace or compile "
    "are shown apart. The script prints twice what it prints."
)
#: JAX compiles in the first call of a kind; jaxmarshal records in up to three.
WARMUP = "3"


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _warmup(text: str) -> dict[str, float | int | None]:
    """What `--warmup` says, as `first_calls.Phases` takes it."""
    number = text.removesuffix("s")
    try:
        if number != text:
            seconds = float(number)
            if 0 <= seconds < float("inf"):
                return {"calls": None, "seconds": seconds}
        elif int(number) >= 0:
            return {"calls": int(number), "seconds": None}
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f"{text!r} is neither a number of calls, such as 3, nor one of seconds, such as 2.5s"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = launch.USAGE.format("compare")
    launch.add_arguments(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything recorded there")
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write one page with both flame graphs and the tables there, and beside it a file "
        "for speedscope",
    )
    parser.add_argument(
        "--warmup",
        type=_warmup,
        default=WARMUP,
        metavar="CALLS|SECONDS",
        help="how many calls of each row, or with an s how many seconds of the run, are shown "
        f"apart, together with all calls that trace or compile (default: {WARMUP}; also 2.5s)",
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
    target = launch.target(options)
    only = launch.entry_points(options)
    command = launch.command(target)
    if importlib.util.find_spec("pyinstrument") is None:
        raise need("pyinstrument")
    for path in (options.json, options.html):
        if path is not None:
            _check_writable(path)
    if options.html is not None:
        _check_writable(_speedscope_file(options.html))
    if options.trace is not None:
        _make_folder(options.trace)

    position = _position()
    runs: dict[str, tuple[int, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="jaxmarshal-") as folder:
        for name in (PLAIN, OURS):
            file = Path(folder) / name
            record = {"interval": options.interval, "warmup": options.warmup, "file": str(file)}
            configuration: dict[str, Any] = {
                "install": name == OURS, "only": only, "record": record,
            }  # fmt: skip
            status = _run_once(name, command, configuration, position)
            runs[name] = status, json.loads(file.read_text()) if file.exists() else None
            if status == -signal.SIGINT:
                return _interrupted(options, target, runs)
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
        _report(options, target, runs)
    else:
        _say("no comparison: a run ended before it was recorded")
    return next((_exit_status(status) for status in failed if status), 0)


def _interrupted(
    options: argparse.Namespace, target: list[str], runs: dict[str, tuple[int, Any]]
) -> int:
    """Show what was recorded until then."""
    recorded = {name: run for name, run in runs.items() if run[1] is not None}
    if recorded:
        _report(options, target, recorded, f"Interrupted in the {list(runs)[-1]} run.")
    else:
        _say("interrupted; nothing was recorded")
    return 128 + signal.SIGINT


def _report(
    options: argparse.Namespace,
    target: list[str],
    runs: dict[str, tuple[int, Any]],
    note: str | None = None,
) -> None:
    """Print what was found, and write the files that were asked for."""
    result = _result(target, options, runs)
    if note:
        result["notes"].insert(0, note)
    _show(result)
    if options.json is not None:
        options.json.write_text(json.dumps(result) + "\n")
    if options.html is not None:
        samples = {name: recorded["samples"] for name, (_, recorded) in runs.items()}
        file = _speedscope_file(options.html)
        file.write_text(json.dumps(profiles.speedscope(" ".join(target), samples)) + "\n")
        options.html.write_text(flame.page(result, file.name), encoding="utf-8")


def _speedscope_file(page: Path) -> Path:
    """The file beside a page."""
    return page.with_name(f"{page.stem}.speedscope.json")


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
    environment = launch.environment(configuration)
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
    target: list[str], options: argparse.Namespace, runs: dict[str, tuple[int, Any]]
) -> dict[str, Any]:
    """The runs as plain data: what `--json` writes."""
    notes = list(comparison.NOTES)
    if OURS in runs and not runs[OURS][1]["installed"]:
        notes.insert(0, "jaxmarshal was not installed in the second run: see doctor.")
    found = {
        name: {
            "exit_status": status,
            **{key: recorded[key] for key in ("seconds", "installed", "stats")},
            "profile": profiles.tree(recorded["samples"]),
            "steady_profile": profiles.tree(recorded["samples"], steady_only=True),
        }
        for name, (status, recorded) in runs.items()
    }
    recorded = {name: run[1]["sites"] for name, run in runs.items()}
    steady = {name: run["steady_profile"] for name, run in found.items()}
    empty = {"time": 0.0, "children": [], "name": "all", "file": "", "kind": "library"}
    return {
        "script": target,
        "versions": doctor.versions(),
        "interval": options.interval,
        "warmup": options.warmup,
        "notes": notes,
        "runs": found,
        "sites": comparison.sites(recorded.get(PLAIN, []), recorded.get(OURS, [])),
        "functions": profiles.functions(steady.get(PLAIN, empty), steady.get(OURS, empty)),
    }


def _show(result: dict[str, Any]) -> None:
    times = ", ".join(f"{name} {run['seconds']:.3f} s" for name, run in result["runs"].items())
    _say(f"{times}, from the end of JAX's import to the exit")
    _say(comparison_text.summary(result))
    for table in comparison_text.tables(result):
        comparison_text.print_table(table)
    for note in result["notes"]:
        comparison_text.print_text(f"note: {note}")
