"""What Python runs at its start for `python -m jaxmarshal run` and `compare`.

Those commands start Python anew with this folder in front of PYTHONPATH, so that Python itself runs
the user's script and nothing of it is imitated. Before the script starts, everything is put back:
the environment, `sys.path`, and the `sitecustomize` that this one was found instead of. What
remains is one finder that waits for `import jax`.

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


def _start(configuration):
    """Hand over to the package, which is loaded from where the command was."""
    import importlib.util
    import json

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        if "jaxmarshal" not in sys.modules:
            spec = importlib.util.spec_from_file_location(
                "jaxmarshal",
                os.path.join(package, "__init__.py"),
                submodule_search_locations=[package],
            )
            assert spec is not None and spec.loader is not None
            sys.modules["jaxmarshal"] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        from jaxmarshal import _child

        _child.start(json.loads(configuration))
    except Exception as error:  # the script can do without
        sys.modules.pop("jaxmarshal", None)
        print(f"jaxmarshal: not started: {type(error).__name__}: {error}", file=sys.stderr)


class _Finder:
    """Finds `jax` as the other finders do, and calls `_start` when it has been imported."""

    def __init__(self, configuration):
        self.configuration = configuration

    def find_spec(self, name, path=None, target=None):
        if name != "jax":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                break
        else:
            sys.meta_path.insert(0, self)  # it may become importable later
            return None
        loader, configuration = spec.loader, self.configuration

        def exec_module(module):
            del loader.exec_module
            loader.exec_module(module)
            _start(configuration)

        loader.exec_module = exec_module
        return spec


def _main():
    folder = os.path.dirname(os.path.abspath(__file__))
    _restore_environment()
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    sys.path_importer_cache.pop(folder, None)
    configuration = os.environ.pop(CONFIGURATION, None)
    if configuration is not None:
        if "jax" in sys.modules:  # a .pth file may import it
            _start(configuration)
        else:
            sys.meta_path.insert(0, _Finder(configuration))

    this = sys.modules.pop(__name__)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401, the user's own
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules[__name__] = this


if __name__ == "sitecustomize":
    _main()
