"""A pytest plugin: `pytest --jaxmarshal` runs any test suite with jaxmarshal installed.

It is a module of its own because pytest loads it in every run: importing the package would import
JAX before the suite has set what JAX reads from the environment.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

HOOK = Path(__file__).resolve().parent / "jaxmarshal" / "_startup" / "hook.py"

Counts = dict[str, dict[str, Any]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--jaxmarshal`."""
    parser.getgroup("jaxmarshal").addoption(
        "--jaxmarshal", action="store_true",
        help="run with jaxmarshal installed, and report its hits and misses",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """With the option, install jaxmarshal as soon as JAX has been imported."""
    if config.getoption("--jaxmarshal"):
        config.pluginmanager.register(Installed(config), "jaxmarshal-installed")


def _counts() -> Counts | None:
    """The counts of this process, or None where JAX was not imported."""
    if "jaxmarshal" not in sys.modules:
        return None
    from jaxmarshal._reports import summary

    return summary.counts()


class Installed:
    """Installs, and gathers the counts of all processes that run tests."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.workers: list[Counts | None] = []
        name = "jaxmarshal_hook"
        hook: dict[str, Any] = {"__name__": name, "__file__": str(HOOK)}
        code = SourceFileLoader(name, str(HOOK)).get_code(name)
        assert code is not None
        exec(code, hook)
        self.off = os.environ.get("JAXMARSHAL", "").lower() in hook["OFF"]
        hook["when_imported"](lambda: hook["start"](hook["INSTALL"]))

    def pytest_sessionfinish(self) -> None:
        """In a worker of pytest-xdist: hand the counts to the process that reports."""
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output["jaxmarshal"] = _counts()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the counts of a worker; one that crashed has none."""
        self.workers.append(getattr(node, "workeroutput", {}).get("jaxmarshal"))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the sums."""
        write = terminalreporter.write_line
        terminalreporter.section("jaxmarshal")
        if self.off:
            write("JAXMARSHAL=off: it was not installed")
            return
        found = self.workers or [_counts()]
        counts = [one for one in found if one is not None]
        if not counts:
            write("JAX was not imported")
            return
        from jaxmarshal._reports import summary
        from jaxmarshal._reports.sums import added

        if self.workers:
            write(f"{len(counts)} of {len(found)} workers have counted")
        write(str(summary.Report(added(counts))))
