"""What is private in JAX, and in libraries: every attribute that the sources read, and where.

The gateway names what is imported. An attribute of an object is a belief too: each stands here, in
the one list that has to be gone through with a new JAX.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from support import JAX, REPOSITORY

from jaxmarshal._jax import private
from jaxmarshal.reasons import REASONS

#: The sources of this checkout: a wheel has no Cython in it.
PACKAGE = REPOSITORY / "marshal" / "jaxmarshal"
SOURCES = sorted(path for end in ("*.py", "*.pyx") for path in PACKAGE.rglob(end))
#: Whose attributes are no beliefs: instances in their own methods, modules of Python and our own.
OWN = {"self", "cls", "sys", "os", "jaxmarshal"}
IMPORTS = re.compile(r"^[ \t]*from jaxmarshal\S* c?import (\([^)]*\)|[^\n#]*)", re.MULTILINE)

#: Of named tuples.
OF_PYTHON = {"_asdict", "_fields", "_replace"}

#: Attribute -> what it is believed to be, and the files that read it.
BELIEFS: dict[str, tuple[str, set[str]]] = {
    "_src": ("the package of JAX's private modules", {"private.py"}),
    "_all_args_info": ("of an executable: who it was traced for", {"private.py"}),
    "_get_fastpath_data": ("makes what jaxlib keeps of a call", {"jit.pyx"}),
    "_backends": ("xla_bridge: platform -> client", {"array_words.pyx"}),
    "_default_backend": ("xla_bridge: the client in use, or None", {"array_words.pyx"}),
    # Shardings.
    "_addressable_device_assignment": ("devices in the order of the shards", {"records.pyx"}),
    "_device": ("of a SingleDeviceSharding", {"device_put.pyx", "records.pyx"}),
    "_device_assignment": ("devices in the order of the program", {"make.pyx"}),
    "_internal_device_list": ("the same, with one object for equal ones", {"records.pyx"}),
    # Arrays and keys.
    "_base_array": (
        "of a typed key: the array of its words",
        {
            "guard.pyx", "_nnx_graphs.py", "plays.pyx", "tapes.pyx", "calls.py",
            "key_iteration.pyx",
        },
    ),
    "_impl": (
        "of a typed key: its kind",
        {"guard.pyx", "make.pyx", "key.pyx", "key_iteration.pyx", "tapes.pyx"},
    ),
    "_consumed": ("of a typed key: whether it was used", {"tapes.pyx"}),
    "_npy_value": ("of an array: its data on the host, or None", {"device_get.pyx"}),
    "_pjrt_layout": ("of an array: how its data lie", {"array_words.pyx", "layout_samples.py"}),
    # Functions.
    "_cache_miss": ("of a jitted function: what traces and compiles", {"jit_recorder.pyx"}),
    "_cache_size": ("of a jitted function: its signatures", {"jit_recorder.pyx", "lifetimes.py"}),
    "_clear_cache": ("of a jitted function", {"jit.pyx"}),
    "_fun": ("of a jitted function: what was jitted", {"jit_recorder.pyx"}),
    "_call": ("of a compiled function: its call in C++, or None", {"executables.pyx"}),
    "_executable": (
        "of a compiled function: its MeshExecutable",
        {
            "executables.pyx", "private.py", "calls.py", "compat.py", "eager.py", "refused.py",
        },
    ),
    "_params": ("of a compiled function: trees, constants, types", {"executables.pyx"}),
    # equinox.
    "_FilterCallback": ("keeps lines about callbacks out of the log", {"_equinox.py"}),
    "_JitWrapper": ("what `filter_jit` returns", {"_equinox.py"}),
    # flax.
    "_graphdef": ("of a split module", {"_nnx_graphs.py"}),
    "_jax_trace": ("of a variable", {"nnx.py"}),
    "_mapping": ("of what a module is split into", {"nnx_jit.pyx", "_nnx_graphs.py"}),
    "_trace_ref": ("of a variable's trace state", {"nnx_jit.pyx"}),
    "_weakref": ("of JAX's traces", {"nnx_jit.pyx", "nnx.py"}),
}


def attributes_in_python(text: str) -> Iterator[tuple[str, str]]:
    """Whose attribute is read, and its name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            value = node.value
            yield getattr(value, "id", getattr(value, "attr", "")), node.attr


def attributes_in_cython(text: str) -> Iterator[tuple[str, str]]:
    """The same, by the look of it: without strings and comments."""
    for pattern in (r'"""[\s\S]*?"""', r'"[^"\n]*"', r"#.*"):
        text = re.sub(pattern, "", text)
    yield from re.findall(r"(\w+|[)\]])\.(_\w+)", text)


def private_attributes() -> dict[str, set[str]]:
    """Each private attribute of others' objects -> the files that read it."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        read = attributes_in_python if path.suffix == ".py" else attributes_in_cython
        text = path.read_text()
        own = OWN.union(*(re.findall(r"\w+", names) for names in IMPORTS.findall(text)))
        for whose, name in read(text):
            if re.match(r"_[a-zA-Z]", name) and whose not in own:
                found.setdefault(name, set()).add(path.name)
    return found


def own_attributes() -> set[str]:
    """What the package's own classes have: assigned in a method, or defined in a class."""
    pattern = r"\bself\.(_\w+)[^=\n]*=|^ +(?:cdef|def|cpdef)\b[^(=\n]*?\b(_\w+)\b|^    (_\w+):"
    declared = [path for end in ("*.pxd", "*.pyi") for path in PACKAGE.rglob(end)]
    texts = [path.read_text() for path in [*SOURCES, *declared]]
    found = [names for text in texts for names in re.findall(pattern, text, re.MULTILINE)]
    return {name for names in found for name in names if name}


def test_each_private_attribute_stands_here():
    """A new belief is written down, and one that nobody holds any more goes."""
    own = (own_attributes() | OF_PYTHON) - set(BELIEFS)
    found = {name: files for name, files in private_attributes().items() if name not in own}
    assert found == {name: files for name, (_, files) in BELIEFS.items()}


def test_the_search_finds_what_is_there():
    """In both languages, and in the middle of an expression."""
    assert list(attributes_in_python("x._a.b[0]._c")) == [("", "_c"), ("_a", "b"), ("x", "_a")]
    assert list(attributes_in_cython('f(x)._a + y[0]._b  # z._c\n"z._d"')) == [
        (")", "_a"), ("]", "_b"),
    ]  # fmt: skip
    assert len(SOURCES) > 50


#: Fields of primitives in JAX 0.8 to 0.10.0.
GONE = {"map_primitive", "to_lojax"}


def test_fields_that_plans_are_made_of_are_expected():
    """No version that is supported has a field that nobody here has looked at."""
    assert private.unknown_fields == {}
    for name, expected in private.EXPECTED_FIELDS.items():
        found = set(private.FOUND_FIELDS[name])
        if JAX >= (0, 10, 2):
            assert found == expected - GONE, name
        else:    # some came later
            assert found and found <= expected, name


def test_reasons_are_those_of_the_enum_by_name():
    """The words of `reasons.py` are about the number that is counted."""
    text = (PACKAGE / "_reports" / "counting.pxd").read_text()
    block = text[text.index("cdef enum Reason:"):]
    block = re.sub(r"#.*", "", block[:block.index("REASON_COUNT")])
    names = re.findall(r"^    ([A-Z_]+)", block, re.MULTILINE)
    assert [name.lower() for name in names] == [reason.name for reason in REASONS]
