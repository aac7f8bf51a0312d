"""What Python runs at its start for `python -m jaxmarshal run` and `compare`.

Those commands start Python anew with this folder in front of PYTHONPATH, so that Python itself runs
the user's script and nothing of it is imitated. Before the script starts, everything is put back:
the environment, `sys.path`, and the `sitecustomize` that this one was found instead of. What
remains is one finder that waits for `import jax` (`hook.py`).

Nothing is imported here that Python has not loaded yet: a module beside the script may bear any
name of the standard library.
"""

import os
import sys

CONFIGURATION = "JAXMARSHAL_STARTUP"
ORIGINAL = "JAXMARSHAL_ORIGINAL_"
VARIABLES = ("PYTHONPATH", "LD_PRELOAD")


def _restore_environment():
    for name in VARIABLES:
        original = os.environ.pop(ORIGINAL + name, None)
        if original is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = original


def _load_hook(folder):
    """The names of `hook.py`, which does not become a module of the script's process."""
    from _frozen_importlib_external import SourceFileLoader

    name, path = "jaxmarshal_hook", os.path.join(folder, "hook.py")
    names = {"__name__": name, "__file__": path}
    code = SourceFileLoader(name, path).get_code(name)
    assert code is not None    # there is a file
    exec(code, names)
    return names


def _main():
    folder = os.path.dirname(os.path.abspath(__file__))
    _restore_environment()
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    sys.path_importer_cache.pop(folder, None)
    configuration = os.environ.pop(CONFIGURATION, None)
    if configuration is not None:
        hook = _load_hook(folder)
        hook["when_imported"](lambda: hook["start"](configuration))

    this = sys.modules.pop(__name__)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401, the user's own
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules[__name__] = this


if __name__ == "sitecustomize":
    _main()
