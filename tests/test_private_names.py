"""What is private in JAX, and in libraries: every attribute that the sources read, and where.

The gateway names what is imported. An attribute of an object is a belief too: each stands here, in
the one list that has to be gone through with a new JAX.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support import JAX

from jaxmarshal import _reference
from jaxmarshal.reasons import REASONS

#: The sources of this checkout: a wheel has no Cython in it.
PACKAGE = Path(__file__).resolve().parents[1] / "marshal" / "jaxmarshal"
SOURCES = sorted(path for end in ("*.py", "*.pyx") for path in PACKAGE.rglob(end))
#: Whose attributes are no beliefs: modules of this package, and instances in their own methods.
OWN = {path.stem for path in SOURCES} | {"self", "cls", "sys", "os", "jaxmarshal"}

#: Of named tuples.
OF_PYTHON = {"_asdict", "_fields", "_replace"}

#: Attribute -> what it is believed to be, and the files that read it.
BELIEFS: dict[str, tuple[str, set[str]]] = {
    "_src": ("the package of JAX's private modules", {"_reference.py"}),
    "_all_args_info": ("of an executable: who it was traced for", {"_reference.py"}),
    "_get_fastpath_data": ("makes what jaxlib keeps of a call", {"_jit.pyx"}),
    "_backends": ("xla_bridge: platform -> client", {"_layout.pyx"}),
    "_default_backend": ("xla_bridge: the client in use, or None", {"_layout.pyx"}),
    # Shardings.
    "_addressable_device_assignment": ("devices in the order of the shards", {"_records.pyx"}),
    "_device": ("of a SingleDeviceSharding", {"_device_put.pyx"}),
    "_device_assignment": ("devices in the order of the program", {"_make_plan.pyx"}),
    "_internal_device_list": ("the same, with one object for equal ones", {"_records.pyx"}),
    # Arrays and keys.
    "_base_array": (
        "of a typed key: the array of its words",
        {"_guard.pyx", "_nnx_graphs.py", "_plays.pyx", "_tape.pyx", "calls.py"},
    ),
    "_impl": (
        "of a typed key: its kind", {"_guard.pyx", "_make_plan.pyx", "_replay_key.pyx", "_tape.pyx"}
    ),
    "_consumed": ("of a typed key: whether it was used", {"_tape.pyx"}),
    "_pjrt_layout": ("of an array: how its data lie", {"_layout.pyx", "_samples.py"}),
    # Functions.
    "_cache_miss": ("of a jitted function: what traces and compiles", {"_jit_record.pyx"}),
    "_cache_size": ("of a jitted function: its signatures", {"_jit_record.pyx", "lifetimes.py"}),
    "_clear_cache": ("of a jitted function", {"_jit.pyx"}),
    "_fun": ("of a jitted function: what was jitted", {"_jit_record.pyx"}),
    "_call": ("of a compiled function: its call in C++, or None", {"_execute.pyx"}),
    "_executable": (
        "of a compiled function: its MeshExecutable",
        {
            "_execute.pyx", "_reference.py", "calls.py", "compat.py", "eager.py", "refused.py",
        },
    ),
    "_params": ("of a compiled function: trees, constants, types", {"_execute.pyx"}),
    # flax.
    "_graphdef": ("of a split module", {"_nnx_graphs.py"}),
    "_jax_trace": ("of a variable", {"nnx.py"}),
    "_mapping": ("of what a module is split into", {"_front_nnx.pyx", "_nnx_graphs.py"}),
    "_trace_ref": ("of a variable's trace state", {"_front_nnx.pyx"}),
    "_weakref": ("of JAX's traces", {"_front_nnx.pyx", "nnx.py"}),
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
        for whose, name in read(path.read_text()):
            if re.match(r"_[a-zA-Z]", name) and whose not in OWN:
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
    assert _reference.unknown_fields == {}
    for name, expected in _reference.EXPECTED_FIELDS.items():
        found = set(_reference.FOUND_FIELDS[name])
        if JAX >= (0, 10, 2):
            assert found == expected - GONE, name
        else:    # some came later
            assert found and found <= expected, name


def test_reasons_are_those_of_the_enum_by_name():
    """The words of `reasons.py` are about the number that is counted."""
    text = (PACKAGE / "_stats.pxd").read_text()
    block = text[text.index("cdef enum Reason:"):]
    block = re.sub(r"#.*", "", block[:block.index("REASON_COUNT")])
    names = re.findall(r"^    ([A-Z_]+)", block, re.MULTILINE)
    assert [name.lower() for name in names] == [reason.name for reason in REASONS]
