"""What is published, and what the documents say about it, agree. `make dist` tries the archives."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import tomllib

import pytest
from support import REPOSITORY

pytestmark = pytest.mark.commands

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]

#: Words by which the metadata of a package says that it is under such a licence.
WORDS = {
    "Apache-2.0": ("apache",), "BSD-2-Clause": ("bsd",), "BSD-3-Clause": ("bsd",), "MIT": ("mit",),
    "ISC": ("isc",), "MPL-2.0": ("mpl", "mozilla"), "PSF-2.0": ("python software foundation",),
}  # fmt: skip


def name_of(requirement):
    """The name in a requirement such as `mkdocstrings[python]>=0.29`."""
    return re.match(r"[\w.-]+", requirement)[0].lower()


def required():
    """(name, use) of everything that the project asks for."""
    uses = {"run": PROJECT["project"]["dependencies"], "build": PROJECT["build-system"]["requires"]}
    uses |= {extra: packages for extra, packages in EXTRAS.items() if extra != "dev"}
    return {(name_of(package), use) for use, packages in uses.items() for package in packages}


def documented():
    """Name -> (uses, licence), from the table in docs/dependencies.md."""
    text = (REPOSITORY / "docs" / "dependencies.md").read_text()
    rows = re.findall(r"^\| ([\w-]+)[^|]* \| ([\w, ]+) \| ([^|]+) \|$", text, re.MULTILINE)
    return {name.lower(): (set(uses.split(", ")), licence) for name, uses, licence in rows[1:]}


TABLE = documented()


def test_every_dependency_is_documented():
    """The table says what is asked for, and for what use; nothing more."""
    stated = {(name, use) for name, (uses, _) in TABLE.items() for use in uses}
    assert {pair for pair in stated if pair[1] != "tools"} == required()


def test_every_tool_is_documented():
    """What the Makefile, nox, workflows and pre-commit install is in the table, and the reverse."""
    files = ["Makefile", "noxfile.py", "CONTRIBUTING.md", ".pre-commit-config.yaml"]
    paths = [*(REPOSITORY / name for name in files), *REPOSITORY.glob(".github/workflows/*.yml")]
    text = "\n".join(path.read_text() for path in paths)
    found = re.findall(r"pip install ([\w -]+)", text)
    found += re.findall(r"additional_dependencies: \[([\w -]+)\]", text)
    by_nox = re.findall(r"session\.install\((\"[^)]*)\)", text)
    found += [re.sub('[",]', "", names) for names in by_nox]
    installed = {name for names in found for name in names.split() if name[0] != "-"}
    assert {"nox", "build", "twine", "ruff", "pre-commit"} <= installed
    assert installed <= set(TABLE)
    assert {name for name, (uses, _) in TABLE.items() if "tools" in uses} <= installed


@pytest.mark.parametrize("name", TABLE)
def test_licences(name):
    """The licence is the one that the package states, where it is installed here."""
    uses, licence = TABLE[name]
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        assert not uses & {"run", "test"}
        pytest.skip("not installed here")
    classifiers = [c for c in metadata.get_all("Classifier") or [] if c.startswith("License")]
    stated = [metadata.get("License-Expression"), metadata.get("License"), *classifiers]
    text = " ".join(filter(None, stated)).lower()
    if not text:    # then the licence itself says
        files = importlib.metadata.files(name) or []
        text = "".join(f.read_text() for f in files if f.name.startswith("LICENSE")).lower()
    assert any(re.search(rf"\b{word}\b", text) for word in WORDS[licence]), text[:200]


def test_extras():
    """`dev` is all the others but the libraries of programs, and each one is explained."""
    (everything,) = EXTRAS["dev"]
    assert set(re.findall(r"\w+", everything)) == {"jaxmarshal", *EXTRAS} - {"dev", "programs"}
    page = (REPOSITORY / "docs" / "install.md").read_text()
    assert [extra for extra in EXTRAS if f"`{extra}`" not in page] == []


def test_wheels_are_built_for_the_pythons_that_are_tested():
    """The matrix, the wheels and the classifiers name the same versions."""
    noxfile = (REPOSITORY / "noxfile.py").read_text()
    matrix = re.search(r"^MATRIX = (\{.*?\})", noxfile, re.MULTILINE | re.DOTALL)
    versions = sorted(set(ast.literal_eval(matrix[1]).values()))
    wheels = PROJECT["tool"]["cibuildwheel"]["build"]
    assert wheels == [f"cp{version.replace('.', '')}-*" for version in versions]
    classifiers = "\n".join(PROJECT["project"]["classifiers"])
    assert re.findall(r"Python :: (3\.\d+)$", classifiers, re.MULTILINE) == versions
    workflow = (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text()
    assert sorted(re.findall(r"^ +(3\.\d+)$", workflow, re.MULTILINE)) == versions


def test_the_workflow_runs_what_a_change_must_pass():
    """The workflow adds no check of its own and leaves none out."""
    workflow = (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r"^ +- run: (.*)$", workflow, re.MULTILINE) == [".ci/run"]
    script = (REPOSITORY / ".ci" / "run").read_text()
    targets = set(re.findall(r"^(?:stage|background) .*\bmake (\w+)", script, re.MULTILINE))
    assert {"test", "matrix", "lint", "docs", "dist"} <= targets


def test_every_trap_is_documented_and_tested():
    """The catalogue has the traps in order, and each has a test that says that it is about it."""
    catalogue = (REPOSITORY / "docs" / "traps.md").read_text()
    numbers = [int(number) for number in re.findall(r"^## (\d+)\.", catalogue, re.MULTILINE)]
    assert numbers[:14] == list(range(1, 15))
    assert numbers == sorted(set(numbers))
    listed = re.findall(r"^<!-- tests of trap (\d+) -->$", catalogue, re.MULTILINE)
    assert [int(number) for number in listed] == numbers
    sources = "\n".join(path.read_text() for path in REPOSITORY.glob("tests/**/test_*.py"))
    tested = {int(number) for number in re.findall(r'^    """Trap (\d+):', sources, re.MULTILINE)}
    assert tested >= set(numbers)


def matrix():
    """JAX -> Python, the pairs that `make matrix` runs."""
    tree = ast.parse((REPOSITORY / "noxfile.py").read_text())
    (found,) = [
        ast.literal_eval(node.value) for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MATRIX"
    ]  # fmt: skip
    return found


def test_supported_versions():
    """The README, the classifiers and the wheels name the versions that the matrix runs."""
    from jaxmarshal._jax import private

    text = (REPOSITORY / "README.md").read_text()
    section = text.partition("## Supported versions\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \|$", section, re.MULTILINE)
    assert [(jax, python) for python, jax in rows] == list(matrix().items())
    low, high = (
        ".".join(map(str, bound)) for bound in (private.LOWER_BOUND, private.UPPER_BOUND)
    )
    assert f"`jax>={low},<{high}`" in section
    assert f"jax>={low},<{high}" in PROJECT["project"]["dependencies"]
    classifier = "Programming Language :: Python :: "
    stated = {
        line.removeprefix(classifier) for line in PROJECT["project"]["classifiers"]
        if re.fullmatch(re.escape(classifier) + r"3\.\d+", line)
    }  # fmt: skip
    assert stated == set(matrix().values())
    assert PROJECT["project"]["requires-python"] == ">=3.11" == f">={min(matrix().values())}"
    wheels = {name.removesuffix("-*") for name in PROJECT["tool"]["cibuildwheel"]["build"]}
    assert wheels == {f"cp{python.replace('.', '')}" for python in stated}


def test_platforms_of_wheels():
    """The workflow has a runner for each platform that the documents promise wheels for."""
    text = (REPOSITORY / ".github" / "workflows" / "wheels.yml").read_text()
    (runners,) = re.findall(r"runner: \[(.*)\]", text)
    kinds = {
        ("macos" if "macos" in runner else "aarch64" if runner.endswith("-arm") else "x86_64")
        for runner in runners.split(", ")
    }
    assert kinds == {"x86_64", "aarch64", "macos"}
    classifiers = PROJECT["project"]["classifiers"]
    assert {"Operating System :: MacOS", "Operating System :: POSIX :: Linux"} <= set(classifiers)
    promised = (REPOSITORY / "docs" / "versions.md").read_text()
    assert "Wheels are configured for Linux (x86-64, AArch64) and macOS (arm64)" in promised


def test_the_citation():
    """What people cite is this project, its last release, and its licence."""
    text = (REPOSITORY / "CITATION.cff").read_text()
    fields = dict(re.findall(r"^([a-z-]+): (.+)$", text, re.MULTILINE))
    assert fields["cff-version"] == "1.2.0"
    assert fields["title"] == PROJECT["project"]["name"]
    assert fields["license"] == PROJECT["project"]["license"]
    import jaxmarshal

    changes = (REPOSITORY / "CHANGELOG.md").read_text()
    released = re.findall(r"^## \[(\d[\d.]*)\] - (\S+)$", changes, re.MULTILINE)
    assert released[0] == (fields["version"], fields["date-released"])
    assert fields["version"] == jaxmarshal.__version__
    assert fields["abstract"] and fields["message"] and "\nauthors:\n" in text
    keywords = re.findall(r"^  - ([a-z_]+)$", text, re.MULTILINE)
    assert keywords == PROJECT["project"]["keywords"]
