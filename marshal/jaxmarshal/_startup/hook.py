"""Waits for `import jax`, and starts jaxmarshal when that import is complete.

Three things use it: `sitecustomize.py` beside it for the commands `run` and `compare`, the `.pth`
file of `python -m jaxmarshal activate`, and the pytest plugin. All of them execute this file by its
path, because importing it from the package would import JAX.

Nothing is imported here that Python has not loaded yet: a module beside the script may bear any
name of the standard library.
"""

import os
import sys
from _thread import get_ident

CONFIGURATION = "JAXMARSHAL_STARTUP"
ON = ("on", "1", "true")
OFF = ("off", "0", "false")
#: What the `.pth` file names this module.
ACTIVATION = "jaxmarshal_activation"
INSTALL = '{"install": true, "only": null}'


def start(configuration):
    """Hand over to the package, which is loaded from where this file is."""
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
        from jaxmarshal._tools import in_script

        in_script.start(json.loads(configuration))
    except Exception as error:  # the program can do without
        sys.modules.pop("jaxmarshal", None)
        print(f"jaxmarshal: not started: {type(error).__name__}: {error}", file=sys.stderr)


class Finder:
    """Finds what the other finders find, and acts when one of some modules has been imported.

    A program may import jaxmarshal first, which imports JAX: then that import has to be complete.
    """

    def __init__(self, action, names=("jax", "jaxmarshal")):
        self.action = action
        self.names = names
        #: There is one of these in a process at most: the one that came first decides.
        self.waits_for_jax = "jax" in names
        self.busy = set()  # threads that ask the other finders now, some of which ask all in turn

    def find_spec(self, name, path=None, target=None):
        """A spec of another finder, whose loader tells when it is done; None for other names."""
        thread = get_ident()
        if name not in self.names or thread in self.busy:
            return None
        self.busy.add(thread)
        try:
            spec = self._find_elsewhere(name, path, target)
        finally:
            self.busy.discard(thread)
        if spec is None or spec.loader is None:
            return None  # it may become importable later
        loader = spec.loader
        others = vars(loader).get("exec_module")  # of a finder like this one

        def exec_module(module):
            if others is None:
                del loader.exec_module
            else:
                loader.exec_module = others
            if self not in sys.meta_path:
                return loader.exec_module(module)
            sys.meta_path.remove(self)
            try:
                loader.exec_module(module)
            except BaseException:
                sys.meta_path.insert(0, self)
                raise
            self.action()

        loader.exec_module = exec_module
        return spec

    def _find_elsewhere(self, name, path, target):
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None


def when_imported(action):
    """Call `action` when JAX is imported completely, which may be now."""
    if "jax" in sys.modules:
        action()
    elif not any(getattr(finder, "waits_for_jax", False) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder(action))


def activate():
    """What the `.pth` file does where JAXMARSHAL is set."""
    if CONFIGURATION in os.environ:  # `run` or `compare` has started this Python, and decides
        return
    value = os.environ["JAXMARSHAL"]
    if value.lower() in ON:
        when_imported(lambda: start(INSTALL))
    elif value.lower() not in OFF:
        when_imported(
            lambda: print(
                f"jaxmarshal: JAXMARSHAL={value!r} is neither 'on' nor 'off': not installed",
                file=sys.stderr,
            )
        )


if __name__ == ACTIVATION:
    activate()
