"""The public interface: what it looks like, and what is shipped for others to build on."""

from __future__ import annotations

import copy
import importlib.metadata
import inspect
import os
import pickle
import shutil
import subprocess
import sysconfig
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest
from child import PACKAGE_ROOT, run_code
from support import REPOSITORY

import jaxmarshal
from jaxmarshal import fronts, reasons
from jaxmarshal._jax import patching
from jaxmarshal._reports import counting
from jaxmarshal.fronts import filtered

PACKAGE = Path(jaxmarshal.__file__).parent
HEADERS = sorted(path.name for path in Path(jaxmarshal.get_include(), "jaxmarshal").glob("*.h"))
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

#: Public functions that stand for one of JAX's.
PAIRS = {"device_put": (jaxmarshal.device_put, jax.device_put)}


def test_names():
    """Everything in `__all__` is there and documented."""
    for name in set(jaxmarshal.__all__) - {"__version__"}:
        assert inspect.getdoc(getattr(jaxmarshal, name)), name
    assert set(jaxmarshal.__all__) <= set(dir(jaxmarshal))


def test_packing_is_public():
    """What packs trees is there under the names that the documents use, and nothing else is."""
    from jaxmarshal import packing

    assert sorted(packing.__all__) == ["Packed", "carry", "pack"]
    assert all(getattr(jaxmarshal, name) is getattr(packing, name) for name in packing.__all__)


@pytest.mark.parametrize("name", PAIRS)
def test_signatures_and_documentation(name):
    """Trap 12: names, kinds, defaults, annotations and docs are those of the installed JAX."""
    ours, theirs = PAIRS[name]
    assert ours is not theirs
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert ours.__doc__ == theirs.__doc__
    assert ours.__name__ == ours.__qualname__ == theirs.__name__
    assert ours.__module__ in ("jaxmarshal", theirs.__module__)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1, None, None), {}),
        ((1,), {"x": 1}),
        ((1,), {"nonsense": 1}),
        ((1, None), {"device": None}),
    ],
    ids=repr,
)
def test_wrong_calls(args, kwargs, device_put):
    """Calls that do not fit the signature are TypeErrors before anything happens."""
    with pytest.raises(TypeError):
        device_put(*args, **kwargs)
    assert jaxmarshal.stats()["device_put"]["misses"] == 0


def test_arguments_by_keyword(device_put):
    """All parameters can be given by name."""
    result = device_put(
        x=np.zeros(3), device=jax.devices()[1], src=None, donate=False, may_alias=None
    )
    assert result.devices() == {jax.devices()[1]}


@pytest.mark.parametrize("name", PAIRS)
def test_pickling_and_copying(name):
    """Trap 12: a function is pickled by name and copied as itself, like any function."""
    function = PAIRS[name][0]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(function, protocol)) is function
    assert copy.copy(function) is copy.deepcopy(function) is function


def test_counts():
    """`stats()` is plain data of its own; `reset_stats()` sets it to zero and drops nothing."""
    for _ in range(3):
        jaxmarshal.device_put(1.5)
    jaxmarshal.device_put(1.5, donate=True)
    counts = jaxmarshal.stats()
    assert counts["device_put"] == {
        "hits": 2, "misses": 2, "misses_by_reason": {"not_recorded": 1, "options": 1}
    }  # fmt: skip
    counts["device_put"]["hits"] = 100
    assert jaxmarshal.stats()["device_put"]["hits"] == 2
    jaxmarshal.reset_stats()
    assert jaxmarshal.stats()["device_put"] == {"hits": 0, "misses": 0, "misses_by_reason": {}}
    jaxmarshal.device_put(1.5)
    assert jaxmarshal.stats()["device_put"]["hits"] == 1


def test_reasons_are_explained():
    """Every reason has a name of its own, a meaning, and advice unless it is a hit."""
    assert len({reason.name for reason in reasons.REASONS}) == len(reasons.REASONS)
    assert reasons.REASONS[0].name == "hit"
    assert all(reason.meaning.endswith(".") for reason in reasons.REASONS)
    assert all(reason.advice.endswith(".") for reason in reasons.REASONS[1:])
    counted = {name for name in counting.snapshot() if not name.startswith("dispatch_v0_3.")}
    of_libraries = {front.name for front in fronts.FRONTS}
    assert filtered.NAME in counted
    assert counted == {entry.name for entry in patching.ENTRY_POINTS} | of_libraries | {
        filtered.NAME
    }


# --- What is shipped ------------------------------------------------------------------------------


def compile_c(source: Path, *flags: str) -> None:
    """Run the C compiler, with Python's headers as a system's and warnings as errors."""
    python_headers = {sysconfig.get_path(name) for name in ("include", "platinclude")}
    done = subprocess.run(
        [
            COMPILER, str(source), f"-I{jaxmarshal.get_include()}",
            *[f"-isystem{path}" for path in python_headers], *flags,
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


needs_compiler = pytest.mark.skipif(
    not COMPILER or not Path(sysconfig.get_path("include"), "Python.h").is_file(),
    reason="needs a C compiler and Python's headers",
)


def test_get_include():
    """The folder holds the headers in a folder of the package's name."""
    assert os.path.isdir(jaxmarshal.get_include())
    assert {"argtable.h", "classify.h", "compat.h", "counters.h", "layout.h"} <= set(HEADERS)


@needs_compiler
@pytest.mark.parametrize("flavour", ["release", "debug"])
@pytest.mark.parametrize("header", HEADERS)
def test_each_header_compiles_alone(header, flavour, tmp_path):
    """A header includes what it needs, twice is as good as once, and nothing warns."""
    source = tmp_path / "alone.c"
    line = f'#include "jaxmarshal/{header}"\n'
    source.write_text(line + line + "int nothing(void) { return 0; }\n")
    debug = ["-DJAXMARSHAL_DEBUG=1"] if flavour == "debug" else []
    compile_c(source, "-fsyntax-only", "-std=c11", "-Wall", "-Wextra", "-Werror", *debug)


def test_declarations_and_stubs_are_shipped():
    """Each compiled module has a stub; those that others can cimport have a .pxd."""
    compiled = {
        path.parent / path.name.partition(".")[0]
        for suffix in ("so", "pyd")
        for path in PACKAGE.rglob(f"*.{suffix}")
    }
    values = PACKAGE / "_core" / "values"
    assert {values / "kinds", values / "trees", PACKAGE / "_reports" / "counting"} <= compiled
    assert compiled <= {path.with_suffix("") for path in PACKAGE.rglob("*.pyi")}
    declared = {path.with_suffix("") for path in PACKAGE.rglob("*.pxd")}
    plans = PACKAGE / "_core" / "plans"
    assert {values / "kinds", plans / "plan"} <= declared
    inline_only = {
        values / "arguments", values / "capi", values / "errors", plans / "backoff",
        plans / "intake",
    }  # fmt: skip
    assert declared <= compiled | inline_only
    assert (PACKAGE / "py.typed").is_file()


FOREIGN = """
    from cpython.object cimport PyObject
    from jaxmarshal._core.values.kinds cimport JM_FLOAT, JM_NDARRAY, classify
    from jaxmarshal._core.values.array_words cimport array_aval, array_committed

    def is_float(x):
        return classify(<PyObject*>x) == JM_FLOAT

    def words(x):
        return array_aval(x), array_committed(x)
"""


@needs_compiler
@pytest.mark.slow
def test_others_can_cimport(tmp_path):
    """A Cython module outside the package builds against what is shipped, and runs."""
    compiler = pytest.importorskip("Cython.Compiler.Main")
    (tmp_path / "foreign.pyx").write_text(textwrap.dedent(FOREIGN))
    result = compiler.compile_single(
        str(tmp_path / "foreign.pyx"),
        compiler.CompilationOptions(
            compiler.default_options, language_level=3, include_path=[str(PACKAGE_ROOT)]
        ),
        "foreign",
    )
    assert result.num_errors == 0
    compile_c(
        tmp_path / "foreign.c", "-shared", "-fPIC", "-O1", f"-I{np.get_include()}",
        "-o", str(tmp_path / f"foreign{sysconfig.get_config_var('EXT_SUFFIX')}"),
    )  # fmt: skip
    run_code(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import jax, foreign
        x = jax.device_put(1.0)
        assert foreign.is_float(1.0) and not foreign.is_float(1)
        assert foreign.words(x)[0] is x.aval and foreign.words(x)[1] is False
        """
    )


# --- The version ----------------------------------------------------------------------------------


def test_the_version_is_that_of_the_distribution():
    """What pip knows and what the package says is one and the same."""
    try:
        installed = importlib.metadata.version("jaxmarshal")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package runs from its source tree")
    assert jaxmarshal.__version__ == installed


def test_the_version_is_stated_once():
    """Only `_version.py` holds it; everything else asks there."""
    sources = [*REPOSITORY.glob("marshal/jaxmarshal/**/*.py*"), *REPOSITORY.glob("*.*")]
    sources = [
        path for path in sources
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd", ".toml", ".cfg")
    ]  # fmt: skip
    assert len(sources) > 10
    stated = [path.name for path in sources if f'"{jaxmarshal.__version__}"' in path.read_text()]
    assert stated == ["_version.py"]
