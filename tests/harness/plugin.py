"""Fetches XLA's CPU client as a PJRT plugin, for tests: python tests/harness/plugin.py FOLDER

CUDA and TPU backends are such plugins: JAX reaches them through the PJRT C API, by another client
class than that of its own CPU backend. This one is that CPU backend built as a plugin, so that the
class can be tested without an accelerator. It is a test dependency: nothing of it is published.

Writes FOLDER/libpjrt_cpu.so and FOLDER/plugin.json, which PJRT_NAMES_AND_LIBRARY_PATHS may name;
what is there already is not fetched again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGE = "fastatomstruct-xla-cpu==2026.6.23"
LIBRARY = "libpjrt_cpu.so"
#: As many as the tests have on the CPU.
DEVICES = 8


def fetch(folder: Path) -> None:
    """Download the package by name and take the library out of it."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download",
         "--no-deps", "--only-binary", ":all:", "--dest", str(folder), PACKAGE],
        check=True,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(LIBRARY)]
        (folder / f"{LIBRARY}.part").write_bytes(archive.read(name))
    (folder / f"{LIBRARY}.part").rename(folder / LIBRARY)
    wheel.unlink()


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    if not (folder / LIBRARY).exists():
        fetch(folder)
    description = {
        "library_path": str(folder / LIBRARY),
        "create_options": {"cpu_device_count": DEVICES},
    }
    (folder / "plugin.json").write_text(json.dumps(description) + "\n")


if __name__ == "__main__":
    main()
