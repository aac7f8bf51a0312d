"""`%load_ext jaxmarshal` in IPython and Jupyter: `%jaxmarshal` and `%%jaxmarshal`."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from typing import Any

from jaxmarshal._jax import patching
from jaxmarshal._reports import counting, summary, sums

NAME = "jaxmarshal"
USAGE = "%jaxmarshal [report | on | off | reset]"

#: A cell is run for about this long on each side, after it has run a few times.
SECONDS = 1.0
#: Runs before any is timed: JAX compiles in the first, jaxmarshal records in up to three.
MOST_WARM_UPS = 4
MOST_ROUNDS = 7


def line_magic(line: str) -> summary.Report | None:
    """`%jaxmarshal`: show the report; `on`, `off`: install, uninstall; `reset`: count anew.

    Raises:
      UsageError: for any other word.
    """
    word = line.strip() or "report"
    if word == "report":
        return summary.report()
    if word == "on":
        patching.install()
    elif word == "off":
        patching.uninstall()
    elif word == "reset":
        counting.reset()
    else:
        from IPython.core.error import UsageError

        raise UsageError(f"{USAGE}; not {word!r}")
    return None


class Comparison:
    """What `%%jaxmarshal` found out about a cell.

    Attributes:
      plain: seconds of the fastest run with plain JAX.
      fast: seconds of the fastest run with jaxmarshal.
      runs: how many times each side was timed.
      report: the calls of one run with jaxmarshal.
    """

    def __init__(self, plain: float, fast: float, runs: int, report: summary.Report) -> None:
        self.plain, self.fast, self.runs, self.report = plain, fast, runs, report

    def _line(self) -> str:
        times = f"plain JAX {_time(self.plain)}, jaxmarshal {_time(self.fast)}"
        if not self.report.rows:
            return f"{times}: nothing to compare, the cell calls nothing that jaxmarshal knows"
        return (
            f"{times}: {self.plain / self.fast:.2f} times as fast (best of {self.runs} runs each; "
            "one run makes these calls)"
        )

    def __str__(self) -> str:
        return f"{self._line()}\n{self.report}" if self.report.rows else self._line()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        line = f"<p>{self._line()}</p>"
        return f"{line}\n{self.report._repr_html_()}" if self.report.rows else line


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(run: Callable[[], None]) -> Comparison:
    """Run something without and with jaxmarshal, in turns, and compare the fastest runs.

    These runs are in the result's report, and in none of the session.
    """
    with sums.set_aside():
        return _compared(run)


def _compared(run: Callable[[], None]) -> Comparison:
    with patching.uninstalled():
        run()
        quiet = _silent(run)
        once = min(_timed(quiet), _timed(quiet))
    with patching.installed():
        for _ in range(MOST_WARM_UPS):
            before = summary.counts()
            quiet()
            report = summary.Report(sums.less(summary.counts(), before))
            if not any(row.reason and row.reason.name == "not_recorded" for row in report.rows):
                break
    rounds = int(min(MOST_ROUNDS, max(1, SECONDS / max(once, 1e-9))))
    # Short cells are run several times in a row, so that the clock and the switch do not show.
    repeat = max(1, int(SECONDS / MOST_ROUNDS / max(once, 1e-6) / 2))

    def several() -> None:
        for _ in range(repeat):
            quiet()

    plain, fast = [], []
    for _ in range(rounds):
        with patching.uninstalled():
            plain.append(_timed(several) / repeat)
        with patching.installed():
            fast.append(_timed(several) / repeat)
    return Comparison(min(plain), min(fast), rounds * repeat, report)


def _silent(run: Callable[[], None]) -> Callable[[], None]:
    """The same without what it prints, which the first run has shown."""

    def quiet() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            run()

    return quiet


def cell_magic(shell: Any, line: str, cell: str) -> Comparison:
    """`%%jaxmarshal`: run the cell without and with jaxmarshal, and compare.

    The cell runs many times in the notebook's own names, as with `%%timeit`, and prints once. What
    was installed before is installed afterwards.

    Raises:
      UsageError: where something follows on the first line.
    """
    if line.strip():
        from IPython.core.error import UsageError

        raise UsageError("%%jaxmarshal takes no options; the cell follows on the next line")
    code = compile(shell.transform_cell(cell), "<%%jaxmarshal>", "exec")
    return compare(lambda: exec(code, shell.user_ns))


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext jaxmarshal` calls: add the magics. Nothing is installed by it.

    Args:
      shell: the running `InteractiveShell`.
    """
    shell.register_magic_function(line_magic, "line", NAME)
    shell.register_magic_function(
        lambda line, cell: cell_magic(shell, line, cell), "cell", NAME
    )


def unload_ipython_extension(shell: Any) -> None:
    """What `%unload_ext jaxmarshal` calls: take the magics away; what is installed stays.

    Args:
      shell: the running `InteractiveShell`.
    """
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop(NAME, None)
