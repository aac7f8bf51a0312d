"""`%load_ext jaxmarshal`: the magics, in IPython's own shell, in a process of its own."""

from __future__ import annotations

import importlib.util
import operator
import os
import sys

import jax.numpy as jnp
import pytest
from child import run_code

import jaxmarshal
from jaxmarshal import api
from jaxmarshal._jax import patching
from jaxmarshal._reports import magics

pytestmark = pytest.mark.commands

needs_ipython = pytest.mark.skipif(
    importlib.util.find_spec("IPython") is None and "JAXMARSHAL_TEST_IPYTHON" not in os.environ,
    reason="IPython is not installed: the magics were NOT tested",
)

SHELL = """
    import os, sys
    sys.path += filter(None, [os.environ.get("JAXMARSHAL_TEST_IPYTHON")])
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()

    def cell(text):
        result = shell.run_cell(text, store_history=True)
        return result.result

    import jax, jax.numpy as jnp
    from jaxmarshal._jax import patching
    before = jnp.zeros
    assert cell("import jax.numpy as jnp") is None
    assert cell("%load_ext jaxmarshal") is None
    assert not patching.installed_names()
"""


@needs_ipython
def test_the_line_magic(tmp_path):
    """On, off, reset and the report, which a notebook shows as a table."""
    done = run_code(
        SHELL
        + """
    cell("%jaxmarshal on")
    assert jnp.zeros is not before
    cell("%jaxmarshal reset")
    cell("x = [jnp.zeros(3) for _ in range(10)]")
    report = cell("%jaxmarshal")
    assert report.rows[0].call == "jnp.zeros" and report.rows[0].calls == 10, report
    assert "<table>" in shell.display_formatter.format(report)[0]["text/html"]
    cell("%jaxmarshal reset")
    assert not cell("%jaxmarshal report").rows
    cell("%jaxmarshal off")
    assert jnp.zeros is before
    assert shell.run_cell("%jaxmarshal nonsense").error_in_exec is not None
    cell("%unload_ext jaxmarshal")
    assert "jaxmarshal" not in shell.magics_manager.magics["line"]
    assert "jaxmarshal" not in shell.magics_manager.magics["cell"]
    """,
        IPYTHONDIR=str(tmp_path),
    )
    assert "%jaxmarshal [report | on | off | reset]; not 'nonsense'" in done.stdout + done.stderr


@needs_ipython
def test_the_cell_magic(tmp_path):
    """The cell runs in the user's names, prints once, and leaves things as they were."""
    done = run_code(
        SHELL
        + """
    cell("n = 0; x = jnp.arange(8.0)")
    found = cell("%%jaxmarshal\\nn += 1\\ny = x[2]\\nprint('once')")
    assert shell.user_ns["n"] > 3 and shell.user_ns["y"] == 2.0
    (row,) = found.report.rows
    assert (row.call, row.calls, row.fast) == ("x[...]", 1, 1), found
    assert found.plain > 0 and found.fast > 0 and found.runs >= 1
    assert "times as fast" in str(found) and "<table>" in found._repr_html_()
    assert not patching.installed_names()
    error = shell.run_cell("%%jaxmarshal\\n1 / 0").error_in_exec
    assert isinstance(error, ZeroDivisionError)
    assert not patching.installed_names()
    assert shell.run_cell("%%jaxmarshal -n 3\\n1").error_in_exec is not None
    found = cell("%%jaxmarshal\\nq = 5; print('hi')")
    assert "times as fast" not in str(found), found
    """,
        IPYTHONDIR=str(tmp_path),
    )
    assert done.stdout.splitlines().count("once") == 1


def test_a_notebook(tmp_path, monkeypatch):
    """A kernel runs a notebook with the magics, and keeps what it shows as text and as HTML."""
    client = pytest.importorskip("nbclient", reason="nbclient is not installed: NOT tested")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: NOT tested")
    nbformat = pytest.importorskip("nbformat")
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    cells = [
        "import jax.numpy as jnp\n%load_ext jaxmarshal\n%jaxmarshal on",
        "for _ in range(10):\n    jnp.zeros(3)",
        "%jaxmarshal",
        "%%jaxmarshal\njnp.zeros(3)",
        "%jaxmarshal nonsense",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    # The kernel of this interpreter, and no other.
    manager = pytest.importorskip("jupyter_client").KernelManager()
    manager.kernel_spec_manager.kernel_dirs = []
    client.NotebookClient(notebook, km=manager, timeout=120, allow_errors=True).execute()
    outputs = [cell.outputs for cell in notebook.cells]
    assert [len(shown) for shown in outputs[:2]] == [0, 0], outputs
    for (shown,) in outputs[2:4]:
        assert "<table>" in shown["data"]["text/html"]
        assert "jnp.zeros" in shown["data"]["text/plain"]
    (usage,) = outputs[4]    # one line, as IPython shows wrong usage, and no traceback
    assert (usage["output_type"], usage["name"]) == ("stream", "stderr")
    assert "not 'nonsense'" in usage["text"]


def test_a_comparison():
    """Plain JAX is plain and jaxmarshal is installed; what was installed before is afterwards."""
    api.clear()    # other tests may have made it wait before it records such an index again
    seen = set()
    x = jnp.arange(3.0)

    def run():
        seen.add(len(patching.installed_names()))
        # Not `x[0]`: a class that changed a thousand times has no version for 3.12 and 3.13, and
        # their interpreter then calls the method that it has met there before.
        operator.getitem(x, 0)

    found = magics.compare(run)
    active = {entry.name for entry in patching.ENTRY_POINTS if entry.active}
    assert seen == {0, len(active)}
    (row,) = found.report.rows
    assert (row.entry_point, row.calls) == ("getitem", 1)
    assert patching.installed_names() == frozenset()


def test_a_cell_without_calls(monkeypatch):
    """There is no ratio of what jaxmarshal has no part in."""
    monkeypatch.setattr(magics, "SECONDS", 0.01)
    found = magics.compare(lambda: None)
    for text in (str(found), found._repr_html_()):
        assert "nothing to compare" in text and "times as fast" not in text
    assert found.plain > 0 and found.fast > 0


@pytest.mark.parametrize("resets", [False, True])
def test_the_counts_of_the_session(monkeypatch, resets):
    """The runs of a comparison are not in them, nor what is counted before lost; unless reset."""
    monkeypatch.setattr(magics, "SECONDS", 0.01)
    x = jnp.arange(3.0)

    def run():
        x[0]
        if resets:
            jaxmarshal.reset_stats()

    with jaxmarshal.installed():
        for _ in range(5):
            x[0]
        before = jaxmarshal.stats(), str(jaxmarshal.report())
        assert before[0]["getitem"]["hits"] + before[0]["getitem"]["misses"] >= 5
        assert magics.compare(run).plain > 0
        if resets:
            assert not any(count["hits"] + count["misses"] for count in jaxmarshal.stats().values())
        else:
            assert (jaxmarshal.stats(), str(jaxmarshal.report())) == before
        hits = jaxmarshal.stats()["getitem"]["hits"]
        x[0]
        assert jaxmarshal.stats()["getitem"]["hits"] == hits + 1
        jaxmarshal.reset_stats()
        assert jaxmarshal.stats()["getitem"]["hits"] == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.0031, "3.1 ms"), (4e-6, "4 µs"), (5e-8, "50 ns")]
)
def test_times(seconds, text):
    """A time in the unit that gives it one to three digits before the point."""
    assert magics._time(seconds) == text
