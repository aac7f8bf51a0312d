"""The documentation site: what it opens with, and its pages when they are opened as files."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest
from browser import WIDTH, opened
from child import PACKAGE_ROOT
from support import REPOSITORY

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


#: Lets a page load what it needs, search for instance, before it is looked at.
AWAIT = "--virtual-time-budget=20000"

#: Opens pages one after the other in a frame, and says how wide each is.
FRAME = """<!doctype html><html><body><script>
const say = text => { const p = document.createElement("pre"); p.textContent = text;
  document.body.append(p); };
const frame = document.createElement("iframe");
frame.style.cssText = "width: %dpx; height: 900px; border: 0";
document.body.append(frame);
const waiting = %s;
frame.onload = () => {
  const root = frame.contentDocument.documentElement, name = frame.src.split("/").at(-1);
  if (name.endsWith(".html")) say(`WIDTH ${name} ${root.scrollWidth} of ${root.clientWidth}`);
  if (waiting.length) frame.src = waiting.shift();
};
frame.src = waiting.shift();
</script></body></html>
"""


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
    _, errors = opened(path.as_uri(), tmp_path, AWAIT)
    assert errors == []


def test_no_page_is_wider_than_the_window(site, tmp_path):
    """At 1200 pixels no page of the site scrolls sideways, or complains."""
    pages = sorted(site.glob("*.html")) + sorted(site.glob("source/*/*.html"))[:1]
    page = tmp_path / "frame.html"
    page.write_text(FRAME % (WIDTH, json.dumps([path.as_uri() for path in pages])))
    text, errors = opened(page.as_uri(), tmp_path, "--allow-file-access-from-files", AWAIT)
    found = re.findall(r"<pre>WIDTH (\S+) (\d+) of (\d+)</pre>", text)
    assert [name for name, _, _ in found] == [path.name for path in pages]
    assert [name for name, width, shown in found if int(width) > int(shown)] == []
    assert all(WIDTH - 30 < int(shown) <= WIDTH for _, _, shown in found)    # a scroll bar
    assert errors == []


def test_search_in_a_page_that_is_opened_as_a_file(site, tmp_path):
    """It finds what stands on another page."""
    text, errors = opened(f"{(site / 'index.html').as_uri()}?q=donated", tmp_path, AWAIT)
    assert errors == []
    assert re.search(r"md-search-result__meta\">\s*[1-9]\d* matching documents", text)
