"""`JAXMARSHAL=on` after `python -m jaxmarshal activate`, in an environment made for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path

import pytest
from child import PACKAGE_ROOT, run

from jaxmarshal._tools import activation
from jaxmarshal.commands import CommandError

pytestmark = pytest.mark.commands

#: Prints what is installed here, in a started process, and in a worker that was spawned.
PROGRAM = """
    import multiprocessing, subprocess, sys

    def state(_=None):
        import jax
        return type(jax.numpy.zeros).__name__, "jaxmarshal" in sys.modules

    if __name__ == "__main__":
        code = "import jax, sys; print(jax.device_put.__module__, 'jaxmarshal' in sys.modules)"
        print(state()[1], flush=True)
        subprocess.run([sys.executable, "-c", code], check=True)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(state, [0])[0][1], flush=True)
"""


class Environment:
    """A virtual environment that sees the packages of this one; its Python reads its .pth files."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        self.folder = folder
        self.python = str(folder / "bin" / "python")

    def run(self, *arguments, **environment):
        variables = dict(os.environ)
        for name in ("JAXMARSHAL", "JAXMARSHAL_STARTUP"):
            variables.pop(name, None)
        packages = [str(PACKAGE_ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        variables["PYTHONPATH"] = os.pathsep.join(packages)
        return subprocess.run(
            [self.python, *arguments], env=variables | environment, capture_output=True,
            text=True, timeout=240,
        )  # fmt: skip

    def pth(self):
        return list(self.folder.rglob("jaxmarshal-activation.pth"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    made = Environment(tmp_path_factory.mktemp("environment") / "e")
    done = made.run("-m", "jaxmarshal", "activate")
    assert (done.returncode, done.stderr) == (0, "")
    assert str(made.pth()[0]) in done.stdout
    return made


INSTALLED = (
    "import jax; from jaxmarshal._jax import patching; print(len(patching.installed_names()))"
)
IS_LOADED = "import jax, sys; print('jaxmarshal' in sys.modules)"


def test_an_unmodified_program_and_its_processes(environment, tmp_path):
    """With the variable all of them have it, without it none."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    on = environment.run(str(script), JAXMARSHAL="on")
    assert (on.returncode, on.stderr) == (0, "")
    first, second, third = on.stdout.splitlines()
    assert (first, second.split()[1], third) == ("True", "True", "True")
    plain = environment.run(str(script))
    assert (plain.returncode, plain.stderr) == (0, "")
    assert plain.stdout.splitlines() == ["False", "jax._src.api False", "False"]


@pytest.mark.parametrize(
    "first",
    ["import jax", "import jax.numpy", "import jaxmarshal", "import jaxmarshal._reports.summary",
     "import importlib.util; importlib.util.find_spec('jax'); import jax",
     "from jaxmarshal._jax import patching"],
)  # fmt: skip
def test_whatever_is_imported_first(environment, first):
    """Everything is installed, also where the program imports jaxmarshal or only looks for JAX."""
    done = environment.run("-c", f"{first}; {INSTALLED}", JAXMARSHAL="on")
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 10


def test_nothing_is_imported_for_it(environment):
    """A Python without the variable loads no module for the file; with it, none of jaxmarshal."""
    code = "import sys; print(sorted(name for name in sys.modules if 'jax' in name))"
    for switch in ("", "off", "on", "nonsense"):
        done = environment.run("-c", code, JAXMARSHAL=switch)
        assert (done.stdout, done.stderr) == ("[]\n", "")
    code = "import sys; print(*sys.modules); print(sys.meta_path)"
    before = environment.run("-S", "-c", f"import site; site.main(); {code}")
    file = environment.pth()[0]
    text = file.read_text()
    file.write_text("#\n")    # to read a file that has a line takes a module of its own
    try:
        without = environment.run("-S", "-c", f"import site; site.main(); {code}")
    finally:
        file.write_text(text)
    assert before.stdout == without.stdout


@pytest.mark.parametrize("value", ["off", "0", "False"])
def test_off_keeps_its_meaning(environment, value):
    """Nothing is loaded, and `install()` does nothing."""
    done = environment.run("-c", IS_LOADED, JAXMARSHAL=value)
    assert (done.stdout, done.stderr) == ("False\n", "")
    done = environment.run("-c", f"import jaxmarshal.auto; {INSTALLED}", JAXMARSHAL=value)
    assert done.stdout == "0\n"
    assert "JAXMARSHAL=off" in done.stderr


def test_a_bad_value(environment):
    """One clear line where JAX is imported, and no other."""
    done = environment.run("-c", IS_LOADED, JAXMARSHAL="yes please")
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert done.stderr == (
        "jaxmarshal: JAXMARSHAL='yes please' is neither 'on' nor 'off': not installed\n"
    )
    assert environment.run("-c", "print(1)", JAXMARSHAL="yes please").stderr == ""


def test_jaxmarshal_was_uninstalled_meanwhile(environment):
    """The file is left over: programs run as without it."""
    file = environment.pth()[0]
    text = file.read_text()
    file.write_text(text.replace("hook.py", "gone.py"))
    try:
        done = environment.run("-c", IS_LOADED, JAXMARSHAL="on")
    finally:
        file.write_text(text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_a_package_that_cannot_start(environment, tmp_path):
    """One line, and the program goes on with plain JAX."""
    code = "import sys; sys.modules['jaxmarshal._tools.in_script'] = None; " + IS_LOADED
    done = environment.run("-c", code, JAXMARSHAL="on")
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert done.stderr.startswith("jaxmarshal: not started: ")


def test_commands_that_start_python_decide_themselves(environment, tmp_path):
    """`run --only` installs what it says, whatever the variable says."""
    script = tmp_path / "script.py"
    script.write_text(INSTALLED)
    done = environment.run(
        "-m", "jaxmarshal", "run", "--only", "device_put", str(script), JAXMARSHAL="on"
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_doctor_says_whether_it_is_activated(environment):
    """And that the variable alone has no effect."""
    done = environment.run("-m", "jaxmarshal", "doctor", JAXMARSHAL="on")
    assert ("activated", "yes") in [tuple(line.split()) for line in done.stdout.splitlines()]
    assert "active, installed" in done.stdout
    done = run("-m", "jaxmarshal", "doctor", JAXMARSHAL="on")
    if "activated                no" in done.stdout:
        assert "no effect before `python -m jaxmarshal activate`" in done.stdout
    done = run("-m", "jaxmarshal", "doctor", JAXMARSHAL="onn")
    assert "JAXMARSHAL='onn' is neither 'on' nor 'off'" in done.stdout


def test_activate_twice_and_deactivate(tmp_path):
    """Twice is the same as once; afterwards nothing is left."""
    made = Environment(tmp_path / "e")
    assert made.run("-m", "jaxmarshal", "deactivate").stdout == (
        "it was not activated: nothing to remove\n"
    )
    for _ in range(2):
        assert made.run("-m", "jaxmarshal", "activate").returncode == 0
    (file,) = made.pth()
    assert sorted(path.name for path in file.parent.glob("jaxmarshal*")) == [file.name]
    done = made.run("-m", "jaxmarshal", "deactivate")
    assert (done.returncode, done.stdout) == (0, f"removed: {file}\n")
    assert made.pth() == []
    assert made.run("-c", IS_LOADED, JAXMARSHAL="on").stdout == "False\n"


def test_a_folder_where_python_reads_no_such_files(monkeypatch, tmp_path):
    """It says so, and writes nothing."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(CommandError, match=re.escape(f"does not read .pth files in {tmp_path}")):
        activation.activate()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to(tmp_path):
    """One line that says what to do, exit status 2."""
    made = Environment(tmp_path / "e")
    (packages,) = made.folder.rglob("site-packages")
    packages.chmod(0o500)
    try:
        done = made.run("-m", "jaxmarshal", "activate")
    finally:
        packages.chmod(0o700)
    assert (done.returncode, done.stdout) == (2, "")
    assert "python -m venv" in done.stderr
