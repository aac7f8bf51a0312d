"""The test suite on every supported pair of Python and JAX, each in an environment of its own, and
what else needs environments of its own.

    nox -s matrix                every pair
    nox -s "matrix(jax-0.11.2)"  one of them
    nox -s matrix -- -x -k put   further arguments for pytest
    nox -s dist                  what is published, built into dist/ and tried

Environment:
    JAXMARSHAL_TEST_PROFILE     quick (default) or ci, which runs the property tests for longer.
    JAXMARSHAL_TEST_PROFILE_ON  where that profile holds: first (default), the first pair whose
                                interpreter is found; all; or a Python version, such as 3.12.
    JAXMARSHAL_QUICK_TESTED     Python and JAX with which `make test` has passed already, such as
                                "3.11 0.10.2": what it runs is left out there, and so is half of
                                what it leaves out of long modules.

Slow tests, and all tests of long modules (conftest.py names them), run with JAX 0.10; with others,
what `make test` runs: 0.12 all of it, 0.8, 0.9 and 0.11 a third of the tests each. What starts
commands runs with 0.10 and the newest one, and so do the tests of libraries' functions.

An interpreter is looked for on PATH, then among those that pyenv manages. A pair without one is
skipped, which the output says, and the summary at its end says again.
"""

import atexit
import os
import re
import shutil
import subprocess
from pathlib import Path

import nox

# JAX: Python. README.md has them as a table, which bench/figures.py writes.
MATRIX = {
    "0.8.3": "3.11", "0.9.2": "3.11", "0.10.2": "3.11", "0.11.2": "3.12", "0.12.0.1": "3.13",
}  # fmt: skip
OLDER = ("0.8.3", "0.9.2")

ROOT = Path(__file__).parent.resolve()
SUMMARY = ROOT / ".nox" / "matrix-summary.txt"


def output_of(*command):
    """What the command prints, or nothing where it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def find_python(version):
    """The path of an interpreter of this version (such as 3.12) that really runs, or None."""
    candidates = [shutil.which(f"python{version}")]
    # pyenv puts a launcher on PATH for every version it has, also for those not in use.
    releases = [
        release
        for release in output_of("pyenv", "versions", "--bare").split()
        if re.fullmatch(re.escape(version) + r"\.\d+", release)
    ]
    for release in sorted(releases, key=lambda text: int(text.rpartition(".")[2]), reverse=True):
        candidates.append(f"{output_of('pyenv', 'prefix', release)}/bin/python{version}")
    for candidate in filter(None, candidates):
        # The launcher's own answer names the program behind it.
        report = output_of(
            candidate, "-c", "import sys; print(sys.executable, '%d.%d' % sys.version_info[:2])"
        )
        executable, _, found = report.rpartition(" ")
        if found == version:
            return executable
    return None


PYTHONS = {version: find_python(version) for version in MATRIX.values()}
FOUND = [version for version, path in PYTHONS.items() if path]
FIRST = FOUND[0] if FOUND else None
LAST = FOUND[-1] if FOUND else None    # tests run once more, without reading object layouts
SHORT = "not slow and not rest"        # what `make test` runs
#: Which: those that are about what is read there.
READS_LAYOUT = ["-m", f"{SHORT} and not commands", "-k", "trap or layout or device_put"]

nox.options.default_venv_backend = "virtualenv"

outcomes = {}


def record(python, jax, word, text):
    """Notes how a pair fared, for the summary; `.nox/matrix-summary.txt` is for other programs."""
    if not outcomes:
        atexit.register(lambda: print("\nmatrix:", *outcomes.values(), sep="\n  ", flush=True))
    outcomes[jax] = f"{word}: Python {python} {text}"
    SUMMARY.parent.mkdir(exist_ok=True)
    SUMMARY.write_text("\n".join(outcomes.values()) + "\n")


def profile_for(python, jax):
    """The property-test profile for one pair, see the top of this file."""
    where = os.environ.get("JAXMARSHAL_TEST_PROFILE_ON", "first")
    if where not in ("first", "all", *PYTHONS):
        raise ValueError(f"JAXMARSHAL_TEST_PROFILE_ON={where!r}: expected first, all or a Python")
    chosen = FIRST if where == "first" else where
    if where == "all" or (python == chosen and jax not in OLDER):
        return os.environ.get("JAXMARSHAL_TEST_PROFILE", "quick")
    return "quick"


def chosen_for(python, jax):
    """pytest's arguments for what runs with a pair."""
    if python == FIRST and jax not in OLDER:
        done = os.environ.get("JAXMARSHAL_QUICK_TESTED") == f"{python} {jax}"
        return ["-m", "(slow or rest) and not seldom"] if done else []
    return ["-m", SHORT if python == LAST else f"{SHORT} and not commands"]


wheels = {}    # by Python: one serves every JAX


def wheel_for(session, python):
    """The path of a wheel for this Python, built by way of a source archive."""
    if python not in wheels:
        dist = ROOT / ".nox" / "wheels" / python
        shutil.rmtree(dist, ignore_errors=True)
        session.install("build")
        session.run(
            "python", "-m", "build", "--outdir", str(dist), str(ROOT),
            env={"JAXMARSHAL_WERROR": "1", "JAXMARSHAL_BUILD": "release"}, silent=True,
        )  # fmt: skip
        session.run(
            "python", "-m", "pip", "--quiet", "uninstall", "--yes", "build", "packaging",
            "pyproject_hooks",
        )  # fmt: skip
        (wheels[python],) = dist.glob("*.whl")
    return wheels[python]


@nox.session
@nox.parametrize(
    "python,jax",
    [
        nox.param(PYTHONS[version] or False, jax, id=f"jax-{jax}")
        for jax, version in MATRIX.items()
    ],
)
def matrix(session, jax):
    """Install a wheel with one JAX, and run the whole suite."""
    python = MATRIX[jax]
    if not PYTHONS[python]:
        message = f"not found: JAX {jax} was NOT tested"
        record(python, jax, "SKIPPED", message)
        banner = f"SKIPPED: Python {python} {message}"
        print("\n" + "!" * len(banner), banner, "!" * len(banner), sep="\n", flush=True)
        if FIRST is None:
            session.error("no supported interpreter at all was found")
        session.skip(banner)

    record(python, jax, "FAILED", f"with JAX {jax}")
    work = Path(session.create_tmp()).resolve()
    wheel = wheel_for(session, python)
    session.chdir(work)
    # First as a user's pip leaves it, with nothing else: it works without what the tests need.
    session.install(str(wheel), f"jax=={jax}")
    session.run("python", str(ROOT / ".ci" / "smoke.py"), "--jax", jax, log=False)
    with_fronts = python in (FIRST, LAST) and jax not in OLDER
    extras = "test,examples,fronts" if with_fronts else "test,examples"
    session.install(f"{wheel}[{extras}]", f"jax=={jax}")
    pytest = [
        "python", "-m", "pytest", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"),
        "-n", "auto", "--maxprocesses=2", "--dist", "worksteal", *session.posargs,
        str(ROOT / "tests"),
    ]  # fmt: skip
    session.run(
        *pytest, *chosen_for(python, jax), env={"JAXMARSHAL_TEST_PROFILE": profile_for(python, jax)}
    )
    if python == LAST:
        session.run(
            *pytest, *READS_LAYOUT,
            env={"JAXMARSHAL_TEST_PROFILE": "quick", "JAXMARSHAL_OBJECT_LAYOUT": "off"},
        )  # fmt: skip
    record(python, jax, "TESTED", f"with JAX {jax}")


@nox.session
def lint(session):
    """`make lint` in an environment of its own."""
    session.run("make", "lint", f"VENV={session.virtualenv.location}", external=True)


@nox.session
def debug(session):
    """`make debug` in an environment of its own."""
    session.run("make", "debug", f"VENV_DEBUG={session.virtualenv.location}", external=True)


def source_date():
    """The time that files in archives get: SOURCE_DATE_EPOCH, or that of the last commit."""
    earliest = "315532800"    # 1980, as early as a wheel can say
    commit = output_of("git", "-C", str(ROOT), "log", "-1", "--format=%ct")
    return os.environ.get("SOURCE_DATE_EPOCH") or commit or earliest


@nox.session
def dist(session):
    """Build what is published into dist/, check it, and try what pip makes of it elsewhere."""
    work = Path(session.create_tmp()).resolve()
    again, clean = work / "again", work / "clean"
    for folder in (ROOT / "dist", again, clean):
        shutil.rmtree(folder, ignore_errors=True)
    env = {
        "JAXMARSHAL_WERROR": "1", "JAXMARSHAL_BUILD": "release",
        "SOURCE_DATE_EPOCH": source_date(),
    }  # fmt: skip
    session.install("build", "twine")
    build = ["python", "-m", "build", str(ROOT), "--outdir"]
    session.run(*build, str(ROOT / "dist"), env=env, silent=True)
    (sdist,) = (ROOT / "dist").glob("*.tar.gz")
    session.run("twine", "check", "--strict", *map(str, (ROOT / "dist").iterdir()))

    # Once more: the source archive here, the wheel from it as a user's pip would, elsewhere.
    session.run(*build, str(again), "--sdist", env=env, silent=True)
    session.run("python", "-m", "venv", str(clean))
    python = str(clean / "bin" / "python")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    session.run(
        *pip, "wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", str(again), str(sdist),
        env=env, external=True,
    )  # fmt: skip
    session.run("python", str(ROOT / ".ci" / "check_dist.py"), str(ROOT / "dist"), str(again))
    (wheel,) = again.glob("*.whl")
    session.run(*pip, "install", str(wheel), external=True)
    session.chdir(work)
    session.run(python, str(ROOT / ".ci" / "smoke.py"), external=True)
