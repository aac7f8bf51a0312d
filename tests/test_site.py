"""The documentation site: what it opens with, and its pages when they are opened as files."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from child import PACKAGE_ROOT

REPOSITORY = Path(__file__).resolve().parents[1]

pytestmark = [
    pytest.mark.commands,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (REPOSITORY / "mkdocs.yml").exists(), reason="the tests run without the documentation"
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("material") is None,
        reason="mkdocs-material is not installed: the site was NOT built",
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    variables = dict(os.environ, NO_MKDOCS_2_WARNING="1", PYTHONPATH=str(PACKAGE_ROOT))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(folder)],
        cwd=REPOSITORY, env=variables, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def opened(page, tmp_path):
    """What a browser makes of a page that is opened as a file, and what it complains of."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium: the pages were NOT opened in a browser")
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         "--enable-logging=stderr", "--virtual-time-budget=20000", "--window-size=1200,900",
         f"--user-data-dir={tmp_path / 'profile'}", page],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_first_page_opens_as_the_readme_does(site):
    """What it is, how to get it, four programs, where it does not help; then other figures."""
    text = re.sub(r"<[^>]+>", "", (site / "index.html").read_text(encoding="utf-8"))
    begin = (REPOSITORY / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| ([\d.]+ ×) \|$", begin, re.MULTILINE)
    assert len(rows) == 4
    parts = [
        "cuts the time that Python spends on each JAX call", "pip install .",
        "import jaxmarshal.auto", *(part for row in rows for part in row),
        "It does not help", "jaxmarshal compare script.py", "device_put: np f32[8]",
    ]  # fmt: skip
    places = []
    for part in parts:
        places.append(text.index(part, places[-1] if places else 0))
    assert places == sorted(places)


@pytest.mark.parametrize("page", ["index", "reasons", "source/*/*"])
def test_a_page_that_is_opened_as_a_file(site, tmp_path, page):
    """No error in the console."""
    path = sorted(site.glob(f"{page}.html"))[0]
    text, errors = opened(path.as_uri(), tmp_path)
    assert "</html>" in text and errors == []


def test_search_in_a_page_that_is_opened_as_a_file(site, tmp_path):
    """It finds what stands on another page."""
    text, errors = opened(f"{(site / 'index.html').as_uri()}?q=donated", tmp_path)
    assert errors == []
    assert re.search(r"md-search-result__meta\">\s*[1-9]\d* matching documents", text)
