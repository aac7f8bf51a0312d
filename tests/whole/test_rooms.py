"""The core is a house of rooms: each imports from itself and from those below it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import REPOSITORY

PACKAGE = REPOSITORY / "marshal" / "jaxmarshal"
#: From the bottom up.
ROOMS = ("values", "context", "placement", "plans", "replay", "entries")
#: What every room may ask beside these: JAX's private names, the counts, and plain tables.
BESIDE = {"_jax.private", "_reports.counting", "_reports.definitions", "reasons"}
IMPORT = re.compile(
    r"^[ \t]*from jaxmarshal((?:\.\w+)*) c?import (\([^)]*\)|[^\n#]*)", re.MULTILINE
)


def imports(path: Path) -> set[str]:
    """The modules that a source imports or cimports from, below the package."""
    found = set()
    for place, names in IMPORT.findall(path.read_text()):
        module = place[1:]
        held = PACKAGE.joinpath(*module.split("."))
        # A folder's names are modules of it.
        found |= {f"{module}.{name}".strip(".") for name in re.findall(r"\w+", names)} if (
            held.is_dir()
        ) else {module}
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_point_down(room):
    """A room asks those below it, the gateway, and the counts; never one above it."""
    sources = [path for path in (PACKAGE / "_core" / room).glob("*.p*") if path.suffix != ".pyi"]
    assert len(sources) > 3
    below = ROOMS[: ROOMS.index(room) + 1]
    for path in sources:
        for module in imports(path) - BESIDE:
            core, _, rest = module.partition(".")
            assert core == "_core" and rest.partition(".")[0] in below, f"{path.name}: {module}"


def test_each_room_is_entered_by_the_next_one():
    """None of them stands apart: each is asked by a room above it."""
    asked = {
        module.split(".")[1]
        for room in ROOMS
        for path in (PACKAGE / "_core" / room).glob("*.p[yx]*")
        for module in imports(path)
        if module.startswith("_core.") and module.split(".")[1] != room
    }
    assert asked == set(ROOMS[:-1])
