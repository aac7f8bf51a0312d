"""Where the shared library of another malloc is."""

from __future__ import annotations

import ctypes.util
import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

from jaxmarshal.commands import CommandError


class Allocator(NamedTuple):
    """The library's names, best first, and the Debian package that has it."""

    libraries: tuple[str, ...]
    package: str


ALLOCATORS = {
    "jemalloc": Allocator(("jemalloc",), "libjemalloc2"),
    "mimalloc": Allocator(("mimalloc",), "libmimalloc2.0 or libmimalloc3"),
    "tcmalloc": Allocator(("tcmalloc_minimal", "tcmalloc"), "libtcmalloc-minimal4"),
}


def folders() -> list[Path]:
    """Where shared libraries usually are, the user's own choice first."""
    names = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    names += [f"{prefix}/lib" for prefix in (sys.prefix, sys.base_prefix, "/usr/local")]
    names += [f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}", "/usr/lib64", "/usr/lib"]
    return [Path(name) for name in names if name]


def find(name: str) -> str:
    """The library for LD_PRELOAD.

    Raises:
      CommandError: this is not Linux, or the library was not found.
    """
    allocator = ALLOCATORS[name]
    if not sys.platform.startswith("linux"):
        raise CommandError("--malloc works only on Linux")
    for library in allocator.libraries:
        pattern = re.compile(rf"lib{library}\.so(\.\d+)*")
        for folder in folders():
            # LD_PRELOAD separates names by spaces and colons, and cannot quote them.
            if not folder.is_dir() or re.search("[ :]", str(folder)):
                continue
            found = [path for path in folder.iterdir() if pattern.fullmatch(path.name)]
            if found:
                return str(max(found))
    for library in allocator.libraries:
        soname = ctypes.util.find_library(library)
        if soname is not None:
            return soname
    raise CommandError(f"{name} was not found; Debian and Ubuntu have it in {allocator.package}")
