"""The file in site-packages by which `JAXMARSHAL=on` installs jaxmarshal in every program.

Python executes the line in it whenever it starts. Where the variable is not set, the line asks for
it and does nothing more. Where jaxmarshal is no longer there, it does nothing either.
"""

from __future__ import annotations

import os
import site
import sysconfig
from pathlib import Path

from jaxmarshal._startup.hook import ACTIVATION
from jaxmarshal.commands import CommandError

NAME = "jaxmarshal-activation.pth"

_LINE = (
    "import os; os.environ.get('JAXMARSHAL') and os.path.isfile({path}) and "
    "exec(__import__('_frozen_importlib_external').SourceFileLoader({name!r}, {path})"
    ".get_code({name!r}), {{'__name__': {name!r}, '__file__': {path}}})\n"
)


def path() -> Path:
    """Where the file is in this environment once it is activated."""
    return Path(sysconfig.get_path("purelib"), NAME)


def line() -> str:
    """What the file holds: it names the hook by its place, since Python has no `sys.path` yet."""
    hook = Path(__file__).resolve().parents[1] / "_startup" / "hook.py"
    return _LINE.format(path=ascii(str(hook)), name=ACTIVATION)


def is_activated() -> bool:
    """Does this environment have the file, for this copy of jaxmarshal?"""
    try:
        return path().read_text(encoding="utf-8") == line()
    except OSError:
        return False


def activate() -> Path:
    """Write the file; returns where it is.

    Raises:
      CommandError: Python does not read such files there, or the folder cannot be written to.
    """
    file = path()
    read = [os.path.realpath(folder) for folder in site.getsitepackages()]
    if os.path.realpath(file.parent) not in read:
        raise CommandError(f"Python does not read .pth files in {file.parent}")
    part = file.with_suffix(f".{os.getpid()}.part")
    try:
        part.write_text(line(), encoding="utf-8")
        os.replace(part, file)
    except OSError as error:
        raise CommandError(
            f"{file} cannot be written ({error.strerror}); use an environment of your own, made "
            "by python -m venv"
        ) from None
    return file


def deactivate() -> Path | None:
    """Remove the file; returns where it was, or None where there was none.

    Raises:
      CommandError: it cannot be removed.
    """
    file = path()
    try:
        file.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandError(f"{file} cannot be removed ({error.strerror})") from None
    return file
