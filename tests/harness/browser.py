"""Pages as a browser shows them: headless Chromium, where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

#: How wide pages are looked at, in pixels.
WIDTH = 1200

_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", f"--window-size={WIDTH},900",
]  # fmt: skip

#: Has a page say how wide it is, and how much of that is in sight.
ASK_WIDTH = """
<script>
const say = text => { const p = document.createElement("pre"); p.textContent = text;
  document.body.append(p); };
say(`WIDTH ${document.documentElement.scrollWidth} of ${document.documentElement.clientWidth}`);
</script>
"""


def opened(page: str, folder: Path, *flags: str) -> tuple[str, list[str]]:
    """What a browser makes of a page, and the lines of its console. `folder` gets its profile."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium: the page was NOT opened in a browser")
    done = subprocess.run(
        [browser, *_FLAGS, *flags, "--dump-dom", f"--user-data-dir={folder / 'profile'}", page],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "</html>" in done.stdout, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def in_scheme(scheme: str) -> str:
    """The flag for a reader who prefers this colour scheme, `light` or `dark`."""
    return f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"
