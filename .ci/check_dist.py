"""Is a folder of archives fit to be published?

    python .ci/check_dist.py FOLDER           one source archive and at least one wheel
    python .ci/check_dist.py FOLDER OTHER     and those of the same name in OTHER are the same bytes

Each file is under 2 MB; extension modules are stripped and name no folder of the machine that built
them; licence, headers, declarations and stubs are there, and nothing that does not belong.
"""

from __future__ import annotations

import os
import re
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

LIMIT = 2_000_000  # bytes

#: What a wheel may hold, and must: its own names, then those below `*.dist-info`.
IN_WHEEL = {
    r"jaxmarshal/.*\.py": "Python modules",
    r"jaxmarshal_pytest\.py": "the pytest plugin",
    r"jaxmarshal/_(core|reports)/.*\.(so|pyd)": "extension modules",
    r"jaxmarshal/.*\.pyi": "stubs",
    r"jaxmarshal/_(core|reports)/.*\.pxd": "Cython declarations",
    r"jaxmarshal/_tools/[^/]*\.html": "pages",
    r"jaxmarshal/py\.typed": "the mark of a typed package",
    r"jaxmarshal/include/jaxmarshal/[^/]*\.h": "C headers",
    r"[^/]*\.dist-info/licenses/LICENSE": "the licence",
    r"[^/]*\.dist-info/(METADATA|RECORD|WHEEL|top_level\.txt|entry_points\.txt)": "metadata",
}
IN_SDIST = ("PKG-INFO", "LICENSE", "README.md", "setup.py", "pyproject.toml", "tests/conftest.py",
            "include/jaxmarshal/argtable.h",
            "marshal/jaxmarshal/_core/entries/device_put.pyx")  # fmt: skip
#: Folders of this machine that builds go through.
BUILT_IN = sorted(
    {str(Path.home()), str(Path(__file__).resolve().parents[1]), tempfile.gettempdir()} - {"/"}
)
NOT_IN_SDIST = re.compile(
    r"\.(so|pyd|pyc|o)$|/(build|dist|\.git|\.benchmarks|\.hypothesis|\.\w+_cache)/|/\.venv"
)


def wheel_faults(path: Path) -> list[str]:
    """What is wrong with a wheel."""
    faults = []
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if not name.endswith("/")]
        for pattern, what in IN_WHEEL.items():
            if not any(re.fullmatch(pattern, name) for name in names):
                faults.append(f"{what} are missing")
        for name in names:
            if not any(re.fullmatch(pattern, name) for pattern in IN_WHEEL):
                faults.append(f"{name} does not belong")
        for name in names:
            if name.endswith(".so"):
                data = wheel.read(name)
                if data.startswith(b"\x7fELF") and b"\0.symtab\0" in data:
                    faults.append(f"{name} is not stripped")
                if b"site-packages" in data:
                    faults.append(f"{name} names a folder of the environment that built it")
                for folder in BUILT_IN:
                    if os.fsencode(folder) in data:
                        faults.append(f"{name} names {folder}, where it was built")
    return faults


def sdist_faults(path: Path) -> list[str]:
    """What is wrong with a source archive."""
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    faults = [f"{name} is missing" for name in IN_SDIST if name not in names]
    faults += [f"{m.name} does not belong" for m in members if NOT_IN_SDIST.search(m.name)]
    return faults


def main() -> int:
    """Check, and print one line for each file."""
    folder = Path(sys.argv[1])
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(sdists) != 1 or not wheels:
        sys.exit(f"{folder}: {len(sdists)} source archives and {len(wheels)} wheels")
    failed = False
    for path in (*sdists, *wheels):
        faults = wheel_faults(path) if path.suffix == ".whl" else sdist_faults(path)
        size = path.stat().st_size
        if size >= LIMIT:
            faults.append(f"{size} bytes, {LIMIT} are the limit")
        if len(sys.argv) > 2 and Path(sys.argv[2], path.name).read_bytes() != path.read_bytes():
            faults.append(f"built once more, it is not the same (see {sys.argv[2]})")
        failed = failed or bool(faults)
        print(f"{path.name}: {size} bytes, {'; '.join(faults) or 'nothing wrong'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
