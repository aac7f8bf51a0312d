"""What the site needs beyond MkDocs: the repository's documents and sources as pages of it.

A page is written as it stands in the repository, where its links and images work too. Here

- documents outside of `docs/` become pages (`PAGES`), and links between all of them are made links
  between pages; a source file that a page links to becomes a page, in `source/`;
- `<!-- include: ../README.md#switches -->` is replaced by that section of that document;
- `<!-- tests of trap 4 -->` is replaced by the tests whose docstring begins with "Trap 4:";
- `<!-- entry points -->` is replaced by the table of what `jaxmarshal.install()` replaces;
- `<!-- to check: names -->` is replaced by what a new JAX may have changed, as the sources have it;
- a drawing that stands alone in a paragraph is put into the page, where it has the page's colours;
- a page that would load something from another host fails the build.

A mistake in any of these is a warning, and `mkdocs build --strict` makes it an error.
"""

from __future__ import annotations

import ast
import collections
import functools
import logging
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[1]
logger = logging.getLogger("mkdocs.hooks.jaxmarshal")

#: Documents outside of `docs/`, and where they are in the site.
PAGES = {
    "bench/README.md": "benchmarks.md",
    "bench/programs/README.md": "programs.md",
    "examples/README.md": "examples.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "tests/README.md": "tests.md",
    "SECURITY.md": "security.md",
}
LANGUAGES = {".pyx": "cython", ".pxd": "cython", ".h": "c", ".py": "python", ".pyi": "python"}

LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
DIRECTIVE = re.compile(r"^<!-- (include|tests of trap|entry points|to check):? ?(\S*) -->$")
DRAWING = re.compile(r"^!\[([^\]]*)\]\(([^)]+\.svg)\)$")
EXTERNAL = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\s\"'>]+"
    r"|<link\b(?![^>]*\brel=[\"']?canonical)[^>]*\bhref=[\"']?(?:https?:)?//[^\s\"'>]+"
    r"|(?:@import\s*[\"']?|\burl\([\"']?)(?:https?:)?//[^\s\"')]+"
)

slug = slugify(case="lower")


# --- Documents ------------------------------------------------------------------------------------


@functools.cache
def _text(path: str) -> str:
    """A file of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def _lines(text: str) -> Iterator[tuple[bool, str]]:
    """Each line, and whether it is code."""
    fence = ""
    for line in text.splitlines():
        mark = re.match(r" *(```+|~~~+)", line)
        if mark and not fence:
            fence = mark[1]
            yield True, line
        elif mark and line.strip() == fence:
            fence = ""
            yield True, line
        else:
            yield bool(fence), line


def _section(path: str, anchor: str) -> str:
    """What stands under a heading, up to the next one that is not below it.

    Of a title: what the document begins with, up to the next heading.
    """
    level, body = 0, []
    for code, line in _lines(_text(path)):
        heading = None if code else re.match(r"(#+) (.*)", line)
        if heading and level and (level == 1 or len(heading[1]) <= level):
            break
        if level:
            body.append(line)
        elif heading and slug(heading[2], "-") == anchor:
            level = len(heading[1])
    if not level:
        raise PluginError(f"{path} has no section #{anchor}")
    return "\n".join(body).strip("\n")


def _documents() -> dict[str, str]:
    """Every document: its path in the repository, and in the site."""
    own = {str(path.relative_to(ROOT)): path.relative_to(ROOT / "docs").as_posix()
           for path in sorted((ROOT / "docs").rglob("*.md"))}  # fmt: skip
    return own | PAGES


def _resolve(path: str, link: str) -> str:
    """The repository path that a relative link in the document `path` means."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


@functools.cache
def _homes() -> dict[tuple[str, str], str]:
    """(document, section) -> the page that includes it."""
    homes = {}
    for path, page in _documents().items():
        for code, line in _lines(_text(path)):
            found = None if code else DIRECTIVE.match(line)
            if found and found[1] == "include":
                link, _, anchor = found[2].partition("#")
                homes[_resolve(path, link), anchor] = page
    return homes


def _page_of(target: str, anchor: str) -> str | None:
    """The page that shows what a link means, or None where it is no file of the repository."""
    if target in _documents():
        return _documents()[target]
    if (target, anchor) in _homes():
        return _homes()[target, anchor]
    if target == "README.md":
        return "index.md"
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"source/{target}.md" if (ROOT / target).is_file() else None


# --- What directives stand for --------------------------------------------------------------------


@functools.cache
def _tests() -> dict[str, list[tuple[str, int, str, str]]]:
    """Number of a trap -> file, line, name and summary of its tests."""
    found: dict[str, list[tuple[str, int, str, str]]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                number, colon, rest = (ast.get_docstring(node) or "").partition(":")
                if colon and number.startswith("Trap ") and number[5:].isdigit():
                    summary = " ".join(rest.split("\n\n")[0].split())
                    found.setdefault(number[5:], []).append(
                        (path.relative_to(ROOT).as_posix(), node.lineno, node.name, summary)
                    )
    return found


def _tests_of(number: str, page: str) -> str:
    """The tests of a trap, folded up."""
    tests = _tests().get(number, [])
    if not tests:
        logger.warning("trap %s has no test", number)
    lines = [f'??? success "{len(tests)} tests"', ""]
    up = "../" * page.count("/")
    for file, line, name, summary in tests:
        # A link to a line is none that MkDocs could check, so it is given as HTML.
        href = f"{up}source/{file}.html#__codelineno-0-{line}"
        lines.append(f'    - <a href="{href}"><code>{name}</code></a>: {summary}')
    return "\n".join(lines)


def _entry_points() -> str:
    """What `install()` replaces, from the package itself."""
    from jaxmarshal._jax import patching

    lines = ["| name in `stats()` and `install(only=…)` | replaces |", "| --- | --- |"]
    for entry in patching.ENTRY_POINTS:
        original = entry.original
        if original is None:
            raise PluginError(f"the installed JAX lacks {entry.name}: build with a supported one")
        place = f"{original.__module__}.{original.__qualname__}"
        lines.append(f"| `{entry.name}` | `{place}` |")
    return "\n".join(lines)


def _to_check(part: str) -> str:
    """A part of the checklist for a new JAX, from the sources."""
    from jaxmarshal._jax import private as gateway

    source = _text("marshal/jaxmarshal/_jax/private.py")
    names = collections.Counter(re.findall(r'_lookup\(\s*"([\w.]+)"', source))
    low, high = (
        ".".join(map(str, bound)) for bound in (gateway.LOWER_BOUND, gateway.UPPER_BOUND)
    )
    states = (gateway.jit_key_states, gateway.states_of_random)
    items = {
        "names": [f"`{module}`: {n} names" for module, n in sorted(names.items())],
        "fields": [
            f"`{name}`: {', '.join(sorted(fields))}"
            for name, fields in gateway.EXPECTED_FIELDS.items()
        ],
        "states": [f"`{state.name}`" for of in states for state in of],
        "bounds": [f"`LOWER_BOUND`: {low}", f"`UPPER_BOUND`: {high}"],
        "figures": [
            f"`{path.relative_to(ROOT)}`" for path in sorted(ROOT.glob("bench/**/figures/*.json"))
        ],
    }[part]
    return "\n".join(f"- [ ] {item}" for item in items)


def _drawing(path: str, text: str) -> str:
    """A drawing as part of the page."""
    body = re.sub(r"\s*\n\s*", " ", _text(path)[_text(path).index("<svg"):]).strip()
    return f'<div class="drawing" role="img" aria-label="{text}">{body}</div>'


# --- From a document to a page --------------------------------------------------------------------


def _render(text: str, path: str, page: str) -> str:
    """The text of a document (or of a section) as the text of a page."""
    def relink(match: re.Match[str]) -> str:
        link, anchor = match[1], match[2] or ""
        target = _page_of(_resolve(path, link), anchor[1:])
        if target is None:
            logger.warning("%s: there is no %s", path, link)
            return match[0]
        if (_resolve(path, link), anchor[1:]) not in _homes() and target == "index.md":
            anchor = ""
        return posixpath.relpath(target, posixpath.dirname(page) or ".") + anchor

    directives: dict[str, Callable[[str], str]] = {
        "tests of trap": lambda number: _tests_of(number, page),
        "entry points": lambda _: _entry_points(),
        "to check": _to_check,
    }
    result = []
    for code, line in _lines(text):
        directive, drawing = DIRECTIVE.match(line), DRAWING.match(line)
        if code:
            result.append(line)
        elif directive and directive[1] == "include":
            link, _, anchor = directive[2].partition("#")
            source = _resolve(path, link)
            result.append(_render(_section(source, anchor), source, page))
        elif directive:
            result.append(directives[directive[1]](directive[2]))
        elif drawing:
            result.append(_drawing(_resolve(path, drawing[2]), drawing[1]))
        else:
            result.append(LINK.sub(relink, line))
    return "\n".join(result) + "\n"


def _linked_sources() -> set[str]:
    """The files that are no documents and that a document links to, or that hold a listed test."""
    found = {file for tests in _tests().values() for file, *_ in tests}
    for path in [*_documents(), "README.md"]:
        for code, line in _lines(_text(path)):
            for match in () if code else LINK.finditer(line):
                target = _resolve(path, match[1])
                page = _page_of(target, (match[2] or "")[1:])
                if page and page.startswith("source/"):
                    found.add(target)
    return found


# --- The events of MkDocs -------------------------------------------------------------------------


def on_pre_build(config: Any) -> None:
    """With `mkdocs serve` files change between builds."""
    for cached in (_text, _homes, _tests):
        cached.cache_clear()


def on_files(files: Files, config: Any) -> Files:
    """Add the documents outside of `docs/`, and the sources that are linked to."""
    for path, page in PAGES.items():
        files.append(File.generated(config, page, content=_text(path)))
    for path in sorted(_linked_sources()):
        suffix = Path(path).suffix
        text = _text(path)
        fence = "`" * (3 + max((len(run) for run in re.findall(r"`+", text)), default=0))
        language = LANGUAGES.get(suffix, "text")
        files.append(
            File.generated(
                config, f"source/{path}.md",
                content=f"---\nhide: [navigation, toc]\nsearch:\n  exclude: true\n---\n"
                f"# {path}\n\n{fence} {{ .{language} linenums=\"1\" }}\n{text}\n{fence}\n",
            )
        )  # fmt: skip
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite one page."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    path = next((path for path, place in _documents().items() if place == uri), f"docs/{uri}")
    return _render(markdown, path, uri)


def on_post_build(config: Any) -> None:
    """Whoever reads the site is known to nobody else, and needs no network."""
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css"):
            for match in EXTERNAL.finditer(path.read_text(encoding="utf-8")):
                logger.warning("%s loads %s", path.relative_to(config.site_dir), match[0])
