"""`python -m jaxmarshal run`, through real processes: the script cannot tell, but for the speed."""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from child import PACKAGE_ROOT, run, status_of

from jaxmarshal.__main__ import main
from jaxmarshal._tools import malloc
from jaxmarshal.commands import CommandError

pytestmark = pytest.mark.commands

#: What a script may look at, printed.
LOOK = """
    import os, sys
    import sibling
    print(sys.argv, sys.path, sys.flags, sys.warnoptions)
    print(__name__, __file__, __spec__, __package__, sorted(globals()))
    print(sorted(set(os.environ.items())))
    print(sibling.__file__, sorted(set(sys.modules) - {'sitecustomize'}))
    print(sys.stdin.read())
"""

SCRIPTS = {
    "status": "import sys; print('out'); sys.exit(3)",
    "zero": "import sys; sys.exit(0)",
    "none": "import sys; sys.exit(None)",
    "message": "import sys; sys.exit('a message')",
    "exception": """
        def inner():
            raise ValueError("a\\nb")

        def outer():
            inner()

        if __name__ == "__main__":
            outer()
    """,
    "cause": """
        import sys
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise KeyError("k") from error
    """,
    "syntax": "def f(:\n    pass",
    "excepthook": """
        import sys
        sys.excepthook = lambda kind, value, traceback: print(kind, traceback.tb_next)
        raise ValueError
    """,
    "interrupt": "raise KeyboardInterrupt",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "exit-hooks": """
        import atexit, threading, time
        atexit.register(print, "bye")
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    """,
    "jax-error": """
        import jax
        jax.jit(lambda x: x if x else 1)(1.0)
    """,
    "late-settings": """
        import os
        os.environ["JAX_ENABLE_X64"] = "1"
        import jax
        from jax._src import xla_bridge
        assert not xla_bridge.backends_are_initialized()
        print(jax.numpy.arange(3.0).dtype, jax.__file__, vars(jax.__spec__.loader))
    """,
    "subprocess": """
        import subprocess, sys
        code = "import jax, os, sys; print('jaxmarshal' in sys.modules, sorted(os.environ))"
        subprocess.run([sys.executable, "-c", code], check=True)
    """,
}


@pytest.fixture
def script(tmp_path):
    """Write a script to a folder of its own."""

    def write(code, name="script.py"):
        path = tmp_path / "scripts" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(code))
        return str(path)

    return write


def outcome(done):
    return done.returncode, done.stdout, done.stderr


def assert_same(*arguments, flags=(), **options):
    """The same exit status and output with `run` as without; what it was is returned."""
    plain = run(*flags, *arguments, **options)
    ours = run(*flags, "-m", "jaxmarshal", "run", *arguments, **options)
    assert outcome(ours) == outcome(plain)
    return plain


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_end_of_a_script(name, script):
    """Exit status, output and tracebacks are those of `python SCRIPT`, to the letter."""
    assert_same(script(SCRIPTS[name]))


@pytest.mark.parametrize("flags", [(), ("-O", "-X", "dev", "-W", "error::UserWarning")])
def test_what_a_script_sees(script, flags, tmp_path):
    """Arguments, paths, globals, environment, modules and input; a sibling may be `json`."""
    path = script(LOOK)
    script("import json", "sibling.py")
    script("NAME = 'json beside the script'", "json.py")
    arguments = ["--json", "-m", "--report", "--", "a b", "--only", ""]
    done = assert_same(path, *arguments, flags=flags, stdin="some\ninput", cwd=tmp_path)
    assert (done.returncode, str(arguments)[1:] in done.stdout) == (0, True), done.stderr
    assert done.stdout.endswith("some\ninput\n")


def test_a_module(script, tmp_path):
    """`-m` is that of Python; what follows the name belongs to the module."""
    script("import sys; print(sys.argv, sys.path[0], __name__, __spec__.name)", "m.py")
    folder = tmp_path / "scripts"
    assert_same("-m", "m", "--json", "-m", "x", cwd=folder)
    assert_same("-m", "no_such_module", cwd=folder)


def test_a_folder_and_the_input(script, tmp_path):
    """A folder with a `__main__.py`, and `-` for the standard input, as in Python."""
    script("import sys; print(sys.argv, __name__)", "__main__.py")
    assert_same("scripts", "x", cwd=tmp_path)
    assert_same("-", "x", stdin="import sys; print(sys.argv, __name__); 1/0")


def test_a_sitecustomize_of_the_users_own(script, tmp_path):
    """It runs as before, with errors reported by Python as before: once for each Python started."""
    own = tmp_path / "sitecustomize.py"
    paths = f"{PACKAGE_ROOT}:{tmp_path}"
    path = script("import sys, sitecustomize; print(sys.mine, sitecustomize.__file__)")
    own.write_text("import sys; sys.mine = 1; print('mine')")
    done = run("-m", "jaxmarshal", "run", path, PYTHONPATH=paths)
    assert outcome(done) == (0, f"mine\nmine\n1 {own}\n", "")
    own.write_text("1 / 0")
    plain = run(script(""), PYTHONPATH=paths)
    done = run("-m", "jaxmarshal", "run", script(""), PYTHONPATH=paths)
    assert "ZeroDivisionError" in plain.stderr
    assert outcome(done) == (0, "", 2 * plain.stderr)


CALLS = """
    import sys
    import numpy as np
    from jax import device_put
    for _ in range(5):
        device_put(np.arange(3.0))
    device_put(np.arange(3.0), donate=True)
    {}
"""


@pytest.mark.parametrize(
    ("end", "status", "message"),
    [("", 0, ""), ("sys.exit(3)", 3, ""), ("sys.exit('why')", 1, "why\n"), ("1 / 0", 1, "Zero")],
)
def test_report(end, status, message, script):
    """The counts come last, however the script ended; its own output is left alone."""
    done = run("-m", "jaxmarshal", "run", "--report", script(CALLS.format(end)))
    assert (done.returncode, done.stdout) == (status, "")
    before, found, table = done.stderr.partition("jaxmarshal: ")
    assert found and message in before and bool(message) == bool(before)
    title, head, row, *advice = table.splitlines()
    assert re.fullmatch(r"6 calls, 66.7 % of them fast, at least [\d.]+ [mµ]s saved", title)
    assert head.split()[:3] == ["call", "calls", "fast"]
    call, calls, share, percent, _, _, *why = row.split()
    assert [call, calls, share, percent] == ["jax.device_put", "6", "66.7", "%"]
    assert why == ["options", "(1)"]
    assert advice[0].startswith("options: The call has an option")


SLEEPS = """
    import time
    import jax
    jax.numpy.ones(3)
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("options", [(), ("--report",)], ids=" ".join)
def test_interrupted(options, script):
    """Ctrl-C: the report is printed, and the process ends by the signal, as in Python."""
    found = []
    for arguments in ((), ("-m", "jaxmarshal", "run", *options)):
        process = subprocess.Popen(
            [sys.executable, *arguments, script(SLEEPS)], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
        )  # fmt: skip
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)    # it is in `sleep` by then
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        found.append((process.returncode, *stderr.partition("jaxmarshal: ")))
    plain, ours = found
    assert plain[:2] == ours[:2] and plain[0] == -signal.SIGINT
    assert "KeyboardInterrupt" in plain[1]
    assert ("jnp.ones" in ours[3]) == bool(options)


def test_report_without_calls(script):
    """One line, and none in a copy of the process."""
    code = "import jax, os, sys\nif os.fork() == 0: sys.exit()\nos.wait()"
    done = run("-W", "ignore", "-m", "jaxmarshal", "run", "--report", script(code))
    assert outcome(done) == (0, "", "jaxmarshal: no calls\n")
    done = run("-m", "jaxmarshal", "run", "--report", script("print(1)"))
    assert outcome(done) == (0, "1\n", "")


def test_only(script):
    """`--only` installs what it names."""
    path = script(
        """
        import jax
        from jaxmarshal._jax import patching
        print(sorted(patching.installed_names()))
        """
    )
    done = run("-m", "jaxmarshal", "run", "--only", "device_put", "--only", "shard_args", path)
    assert outcome(done) == (0, "['device_put', 'shard_args']\n", "")


def test_switched_off(script):
    """`JAXMARSHAL=off` is obeyed."""
    path = script("import jax; print(jax.device_put.__module__)")
    done = run("-m", "jaxmarshal", "run", path, JAXMARSHAL="off")
    assert (done.returncode, done.stdout) == (0, "jax._src.api\n")
    assert "JAXMARSHAL=off" in done.stderr


def test_no_tracebacks(script):
    """Compiled programs no longer name lines of the source, and Python's own errors still do."""
    path = script(
        """
        import jax
        text = jax.jit(lambda x: x + 1).lower(1.0).as_text(debug_info=True)
        print("script.py" in text)
        jax.jit(lambda x: 1 / 0)(1.0)
        """
    )
    plain = assert_same(path)
    done = run("-m", "jaxmarshal", "run", "--no-tracebacks", path)
    assert plain.stdout == "True\n"
    assert (done.returncode, done.stdout) == (1, "False\n")
    assert 'script.py", line 5, in <lambda>' in done.stderr


needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LD_PRELOAD")


@needs_linux
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: --malloc was NOT tested")
def test_malloc(script, tmp_path):
    """The library is in the process, and neither the script nor its programs see the variable."""
    folder = tmp_path / "lib"
    folder.mkdir()
    source = tmp_path / "empty.c"
    source.write_text("int jaxmarshal_test;")
    library = folder / "libmimalloc.so.9.1"
    subprocess.run(["cc", "-shared", "-o", str(library), str(source)], check=True)
    path = script(
        """
        import os, sys
        print([line.split()[-1] for line in open("/proc/self/maps") if "mimalloc" in line][0])
        print(os.environ.get("LD_PRELOAD"))
        """
    )
    arguments = ["-m", "jaxmarshal", "run", "--malloc", "mimalloc", path]
    done = run(*arguments, LD_LIBRARY_PATH=str(folder))
    assert outcome(done) == (0, f"{library}\nNone\n", "")
    done = run(*arguments, LD_LIBRARY_PATH=str(folder), LD_PRELOAD=str(library))
    assert outcome(done) == (0, f"{library}\n{library}\n", "")


@needs_linux
@pytest.mark.parametrize("name", malloc.ALLOCATORS)
def test_malloc_not_found(name, script, monkeypatch, capsys):
    """One line that names the package; the script is not run."""
    monkeypatch.setattr(malloc, "folders", list)
    monkeypatch.setattr(ctypes.util, "find_library", lambda library: None)
    assert main(["run", "--malloc", name, script("print(1)")]) == 2
    output = capsys.readouterr()
    package = malloc.ALLOCATORS[name].package
    assert output.out == ""
    assert output.err == (
        f"jaxmarshal run: {name} was not found; Debian and Ubuntu have it in {package}\n"
    )


def test_malloc_elsewhere(monkeypatch):
    """Linux only."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(CommandError, match="only on Linux"):
        malloc.find("jemalloc")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a script"),
        (["--report"], "name a script"),
        (["-m"], "needs the name of a module"),
        (["nowhere.py"], "no script 'nowhere.py'"),
        (["--only", "nothing", __file__], "unknown entry points ['nothing']"),
        (["--nonsense", __file__], "--nonsense"),
        (["--malloc", "nonsense", __file__], "nonsense"),
    ],
    ids=" ".join,
)
def test_bad_arguments(arguments, message, capsys):
    """Exit status 2, and a line that says what is wrong."""
    status = status_of("run", *arguments)
    output = capsys.readouterr()
    assert (status, output.out) == (2, "")
    assert message in output.err


def test_options_of_python_that_prevent_it(script):
    """Without `site` or PYTHONPATH nothing would be installed: said, not done silently."""
    done = run(
        "-E", "-c", f"import sys; sys.path.insert(0, {str(PACKAGE_ROOT)!r}); "
        f"from jaxmarshal.__main__ import main; sys.exit(main(['run', {script('')!r}]))",
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "-E, -I and -S" in done.stderr


def test_help():
    """Every option is explained with what it changes."""
    done = run("-m", "jaxmarshal", "run", "--help", COLUMNS="100")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: jaxmarshal run [options] (SCRIPT | -m MODULE)")
    for option in ("--report", "--no-tracebacks", "--malloc", "--only", "-m MODULE"):
        assert option in done.stdout
