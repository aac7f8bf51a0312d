"""What is missing with a JAX that jaxmarshal was not checked against, as one page.

    python .ci/newest.py build/newest.md                 # names, fields, entry points, test groups
    python .ci/newest.py build/newest.md --tests ''      # without running tests

The bounds are lifted by JAXMARSHAL_TEST_ANY_JAX=1, a switch for tests alone. A group of tests is a
file; the page opens with what is missing, and names the groups that fail. Exit status 1 where
anything is missing or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    **os.environ, "JAXMARSHAL_TEST_ANY_JAX": "1", "JAX_PLATFORMS": "cpu",
    "PYTHONPATH": os.pathsep.join((str(ROOT / "marshal"), str(ROOT / "tests" / "harness"))),
}  # fmt: skip
#: Test groups that take a minute together and meet every entry point.
TESTS = (
    "test_reference test_private_names test_layout test_classify test_device_put_arguments "
    "test_device_put_options test_execute_calls test_jit_calls test_eager_traps test_meshes"
)
#: Seconds that one group may take.
LIMIT = 1800

FACTS = """
import json, warnings
import jaxmarshal
from jaxmarshal._jax import patching, private
from jaxmarshal._reports import doctor
import jax.numpy as jnp
jnp.ones(3) + 1
facts = doctor.examine()
print(json.dumps({
    "versions": [private.JAX_VERSION, private.JAXLIB_VERSION, private.NUMPY_VERSION],
    "missing": private.missing,
    "unknown": {name: list(new) for name, new in private.unknown_fields.items()},
    "gone": {
        name: sorted(expected - set(private.FOUND_FIELDS[name]))
        for name, expected in private.EXPECTED_FIELDS.items()
    },
    "lacks": {name: state["lacks"] for name, state in facts["entry_points"].items()},
}))
"""


def run(*command: str, limit: int = LIMIT) -> tuple[int, str]:
    """The exit status and output of a Python program; 124 for one that took too long."""
    try:
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=ENVIRONMENT, text=True, timeout=limit,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, f"it took more than {limit} s"
    return done.returncode, done.stdout


def rows(found: dict[str, str], nothing: str) -> list[str]:
    """One line each, or a word for nothing."""
    return [f"- `{name}`: {what}" for name, what in found.items()] or [nothing]


def describe(facts: dict) -> list[str]:
    """What this JAX lacks, and who goes without."""
    jax, jaxlib, numpy = facts["versions"]
    gone = {name: f"no {', '.join(f)}" for name, f in facts["gone"].items() if f}
    unknown = {name: f"new: {', '.join(f)}" for name, f in facts["unknown"].items()}
    idle = {name: f"for want of {', '.join(why)}" for name, why in facts["lacks"].items() if why}
    missing = {n: why for n, why in facts["missing"].items() if not n.endswith(" as it was")}
    return [
        f"# JAX {jax}, jaxlib {jaxlib}, numpy {numpy}", "",
        "## Missing names", "", *rows(missing, "None."), "",
        "## Fields", "", *rows(unknown | gone, "As expected."), "",
        "## Entry points that are JAX's own", "", *rows(idle, "None."), "",
    ]  # fmt: skip


def test_group(name: str) -> tuple[bool, str]:
    """Has it passed, and its last line; with the names of the tests that fail."""
    (path,) = ROOT.glob(f"tests/*/{name}.py")
    code, text = run("-m", "pytest", str(path), "-q", "--tb=no", "-p", "no:cacheprovider")
    failed = re.findall(r"^(?:FAILED|ERROR) \S+::(\S+)", text, re.MULTILINE)
    last = (text.strip().splitlines() or ["no output"])[-1]
    return code == 0, "; ".join([last, *failed[:10]])


def page(groups: list[str]) -> tuple[str, bool]:
    """The page, and whether nothing is missing and nothing failed."""
    code, text = run("-c", FACTS)
    if code:
        return f"# jaxmarshal does not work at all\n\n```\n{text[-4000:]}\n```\n", False
    facts = json.loads(text.splitlines()[-1])
    found = {name: test_group(name) for name in groups}
    failing = {name: what for name, (passed, what) in found.items() if not passed}
    lines = describe(facts)
    lines += ["## Failing groups of tests", "", *rows(failing, f"None of {len(groups)}."), ""]
    return "\n".join(lines), not (facts["missing"] or failing)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", nargs="?", type=Path, help="the file to write")
    parser.add_argument("--tests", default=TESTS, help="names of test files, apart by spaces")
    options = parser.parse_args()
    text, fine = page(options.tests.split())
    if options.page:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        options.page.write_text(text)
    print(text)
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
