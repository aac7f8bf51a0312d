"""`python -m jaxmarshal bench`: what a call costs with JAX, with jaxmarshal, and at least."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxmarshal._jax import patching
from jaxmarshal.commands import CommandError, need

HELP = "compare the cost of calls: JAX, jaxmarshal, and the cheapest jaxlib call"
DESCRIPTION = (
    "Measures each case on three sides that take turns in one process. Only the ratios of one run "
    "belong together. Exit status 0 when everything was measured, 1 when a case did not take the "
    "path it is about, 2 for bad usage."
)
GROUPS = (
    "device_put", "shard_args", "execute", "ahead_of_time", "jit", "eager", "asarray",
    "meshes", "dispatch_v0_3", "packed", "survey", "fronts", "refused",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="a selection, in under a minute")
    parser.add_argument(
        "--group", action="append", choices=GROUPS, help="only these groups; may be repeated"
    )
    parser.add_argument(
        "--width", action="append", type=int, metavar="N",
        help="only calls with N leaves; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--case", action="append", metavar="TEXT",
        help="only cases with this in their name; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="per case (default: 1.5, with --quick 0.5)"
    )
    parser.add_argument("--list", action="store_true", help="list the cases and measure nothing")
    parser.add_argument(
        "--never-slower", action="store_true",
        help="only ask whether a call is slower than with plain JAX here; exit status 1 if one is",
    )  # fmt: skip
    parser.add_argument(
        "--apart", action="store_true",
        help="with --never-slower: each side in processes of its own, as programs install once",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--html", metavar="FILE", help="write a page with plots there")
    parser.add_argument(
        "--compare", metavar="OLD.json",
        help="report what differs from these figures by more than the noise",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="source", metavar="FILE.json",
        help="show, plot or compare these figures and measure nothing",
    )  # fmt: skip


def _read(path: str) -> dict[str, Any]:
    from jaxmarshal.benchmarks import results

    try:
        return results.read(path)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None
    except results.DamagedFile as error:
        raise CommandError(str(error)) from None


def _check_writable(path: str | None) -> None:
    """Fail before minutes of measuring, not after."""
    if path is None:
        return
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise CommandError(f"cannot write {path}: there is no folder {folder}")
    if Path(path).is_dir():
        raise CommandError(f"cannot write {path}: it is a folder")


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None


@contextlib.contextmanager
def _progress(console: Any, total: int) -> Iterator[Any]:
    """A progress bar on the terminal; called with the name of the case that begins."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    with Progress(
        TextColumn("{task.description:<52}"), BarColumn(), MofNCompleteColumn(),
        console=console, transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=total)
        yield lambda name, step: bar.update(task, description=name, advance=step)


def _measure(chosen: list[tuple[str, Any]], seconds: float) -> tuple[list[dict[str, Any]], int]:
    """Rows of every case that could be measured, and how many took the wrong path."""
    from rich.console import Console

    from jaxmarshal.benchmarks import apart, measure

    rows = []
    wrong = 0
    console = Console(stderr=True)
    with _progress(console, len(chosen)) as show:
        for group, case in chosen:
            show(f"{group}: {case.name}", 0)
            try:
                rows.append(apart.measure_apart(group, case, seconds))
            except measure.NotHere as error:
                console.print(f"skipped {group}: {case.name}: {error}")
            except measure.WrongPath as error:
                wrong += 1
                console.print(f"wrong path: {group}: {error}")
            show(f"{group}: {case.name}", 1)
    return rows, wrong


def _need_some(chosen: object) -> None:
    if not chosen:
        raise CommandError("no case fits; --list shows them")


def _never_slower(options: argparse.Namespace) -> int:
    """Print a line for each call, and what to think of them; exit status 1 if one is slower."""
    from jaxmarshal.benchmarks import never_slower, suite

    suite.force_devices()
    names: dict[str, tuple[str, ...]] = {}
    for group, case in suite.select(options.group, options.width, options.case):
        if not options.quick or case.name in never_slower.QUICK.get(group, ()):
            names[group] = (*names.get(group, ()), case.name)
    _need_some(names)
    rows = []
    measured = _apart if options.apart else never_slower.run
    for name, row, why in measured(names, options.seconds or 0.5):
        if row is None:
            print(f"NOT MEASURED {name}: {why}", flush=True)
            continue
        rows.append(row)
        mark = "SLOWER" if row.slower else "in doubt" if row.doubtful else ""
        print(
            f"{row.ratio:7.2f} x  ± {row.error:.1%}  {name:<56} {row.hits} fast of "
            f"{row.hits + row.misses}  {mark}".rstrip(),
            flush=True,
        )
    if options.json is not None:
        _write(options.json, json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if not (options.group or options.width or options.case):
        print("without a row of their own:", ", ".join(never_slower.without_rows(rows)) or "none")
    print(never_slower.verdict(rows))
    return 1 if any(row.slower for row in rows) else 0


def _apart(names: dict[str, tuple[str, ...]], seconds: float) -> Iterator[tuple[str, Any, str]]:
    """`apart.rows_of_sides` with a progress bar."""
    from rich.console import Console

    from jaxmarshal.benchmarks import apart

    with _progress(Console(stderr=True), 2 * apart.PROCESSES) as show:
        yield from apart.rows_of_sides(names, seconds, lambda text: show(text, 1))


def _show(found: dict[str, Any]) -> None:
    """The table, and the cost of each further leaf."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from jaxmarshal.benchmarks import measure, results

    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(results.title(found), highlight=False)
    group = None
    table = None
    for row in found["rows"]:
        if row["group"] != group:
            if table is not None:
                console.print(table)
            group = row["group"]
            table = Table(title=group, title_justify="left")
            for heading in results.HEADINGS:
                left = heading in ("case", "")
                table.add_column(heading, justify="left" if left else "right", no_wrap=True)
        assert table is not None
        shown = map(escape, results.cells(row))    # `x[i]` is no style
        table.add_row(*shown, style=None if measure.meets(row) else "bold")
    if table is not None:
        console.print(table)
    slopes = measure.per_leaf(found["rows"])
    if slopes:
        table = Table(title="µs for each further leaf", title_justify="left")
        for heading in ("group", "series", "JAX", "jaxmarshal", "floor"):
            table.add_column(heading, justify="left" if heading in ("group", "series") else "right")
        for (name, series), slope in slopes.items():
            sides = ("reference", "jaxmarshal", "floor")
            cells = [f"{slope[side]:.3f}" if side in slope else "" for side in sides]
            table.add_row(name, series, *cells)
        console.print(table)


def _show_differences(old: dict[str, Any], new: dict[str, Any]) -> None:
    from jaxmarshal.benchmarks import results

    print(f"\nagainst {results.title(old)}")
    different = [
        key for key in ("python", "jax", "jaxlib", "machine", "backend")
        if old["versions"].get(key) != new["versions"].get(key)
    ]  # fmt: skip
    if different:
        print(f"note: {', '.join(different)} differ")
    found = results.compare(old["rows"], new["rows"])
    for change in found:
        direction = "better" if change.better else "worse"
        print(
            f"{direction}: {change.group}: {change.case}: {change.old:.2f} -> {change.new:.2f} "
            f"{change.what} (noise {change.noise:.1%})"
        )
    if not found:
        print("no difference beyond the noise")


def run(options: argparse.Namespace) -> int:
    try:
        import rich  # noqa: F401
    except ImportError:
        raise need("rich") from None
    if options.html is not None:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise need("matplotlib") from None
    if options.seconds is not None and not options.seconds > 0:
        raise CommandError("--seconds has to be positive")
    if options.apart and not options.never_slower:
        raise CommandError("--apart belongs to --never-slower")
    patching.uninstall()    # each case installs what it is about; JAXMARSHAL=on may have before
    from jaxmarshal.benchmarks import page, results, suite

    if options.never_slower:
        _check_writable(options.json)
        return _never_slower(options)
    old = None if options.compare is None else _read(options.compare)
    _check_writable(options.json)
    _check_writable(options.html)
    wrong = 0
    if options.source is not None:
        found = _read(options.source)
    else:
        suite.force_devices()    # before anything initialises a backend
        chosen = suite.select(options.group, options.width, options.case, options.quick)
        _need_some(chosen)
        if options.list:
            for group, case in chosen:
                note = "" if case.accelerated else "  (not accelerated yet)"
                print(f"{group}: {case.name}{note}")
            return 0
        import jax

        seconds = options.seconds or (0.5 if options.quick else 1.5)
        rows, wrong = _measure(chosen, seconds)
        found = results.document(rows, jax.config.jax_platforms or jax.default_backend())
    _show(found)
    if options.json is not None:
        _write(options.json, json.dumps(found, indent=1) + "\n")
    if options.html is not None:
        _write(options.html, page.render(found))
    if old is not None:
        _show_differences(old, found)
    return 1 if wrong else 0
