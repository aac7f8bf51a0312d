"""One run: a warm cache, one changed thing, and the thing changed back.

The same run is made with plain JAX and with jaxmarshal installed, and all that can be observed of
every call must be equal. What is made of the calls (`describe`) is made after the change is gone,
so that the harness is not a program under test itself. Whatever fails in the harness is an error
and no observation.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
from observe import NothingCompared, describe, input_leaves
from states import all_states
from support import free_stack

import jaxmarshal
from jaxmarshal._core.replay import fusion
from jaxmarshal._jax import private

#: How often the calls are made before the change, during it, and after it.
WARM, CHANGED, BACK = 3, 2, 2

#: What is seen beside the outcome of a call.
BESIDE = ("warnings", "logged", "lines on stderr", "printed", "lost errors", "user code")


def known() -> set[tuple[str, str]]:
    """Parts of calls in which the two sides are known to differ (trap 5).

    jaxlib from 0.11 on looks for donated arguments before it runs anything, and what runs a plan
    logs that there is one. On JAX's own CPU backend the guard sees it, by a word of the buffer;
    behind the PJRT C API no word says so.
    """
    hidden = private.looks_for_donated and jax.default_backend() != "cpu"
    return {("donated before", "lines on stderr")} if hidden else set()


#: What users' code did during a call: functions traced, nodes taken apart, mocks called.
EVENTS: list[str] = []


def happened(what: str) -> None:
    """Note that user code ran."""
    EVENTS.append(what)


# --- What a run is made of -----------------------------------------------------------------------


@dataclass
class Call:
    """One call that a subject makes again and again.

    Attributes:
      label: what it is about.
      function: what is called.
      make: makes its arguments, anew for each call.
      same: are they made once, and the same objects given each time?
      kwargs: makes its arguments by name.
      deep: is it made only where a change is about its entry?
    """

    label: str
    function: Callable[..., Any]
    make: Callable[[], tuple] = tuple
    same: bool = False
    kwargs: Callable[[], dict[str, Any]] = dict
    deep: bool = False


def Deep(*args: Any, **kwargs: Any) -> Call:
    """A call that is left out of the widest tables."""
    return Call(*args, **kwargs, deep=True)


@dataclass
class Subject:
    """An entry point as it is called in one run.

    Attributes:
      calls: what is called.
      hits: the names in `jaxmarshal.stats()` under which the warm calls must be counted as fast.
      functions: jitted functions whose caches are cleared, by what they are to the one called.
      box: what the jitted functions close over.
      hosts: numpy arrays that are passed again and again, which a change may edit.
      kept: what has to live as long as the subject.
    """

    calls: list[Call]
    hits: tuple[str, ...]
    functions: dict[str, Any] = field(default_factory=dict)
    box: list[float] = field(default_factory=lambda: [2.0])
    hosts: list[Any] = field(default_factory=list)
    kept: Any = None


@dataclass(frozen=True)
class Change:
    """One thing that changes while caches are warm, and changes back.

    Attributes:
      name: unique.
      apply: makes a context manager of the subjects: entering it changes, leaving it changes back.
      entries: the entries that it is about; all if it names none.
      quick: is it part of `make test`?
    """

    name: str
    apply: Callable[[list[Subject]], contextlib.AbstractContextManager]
    entries: tuple[str, ...] = ()
    quick: bool = False


@dataclass
class Difference:
    """Where two runs parted."""

    entry: str
    change: str
    call: str
    step: str
    what: str
    jax: str
    jaxmarshal: str

    def __str__(self) -> str:
        return (
            f"{self.entry} x {self.change}: {self.call}, {self.step}, {self.what}\n"
            f"      JAX:        {self.jax[:300]}\n      jaxmarshal: {self.jaxmarshal[:300]}"
        )


# --- What goes on beside a call ------------------------------------------------------------------


class _Log(logging.Handler):
    """Keeps records of JAX's loggers, without times and addresses."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.kept: list[tuple] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("jaxmarshal"):
            return
        place = (os.path.basename(record.pathname), record.lineno)
        self.kept.append((record.name, record.levelname, *place, plain(record.getMessage())))


def plain(text: str) -> str:
    """A text without what differs from call to call: addresses, times, names made up."""
    text = re.sub(r"\b0x[0-9a-f]+", "0x", text)
    text = re.sub(r"[0-9.e+-]+ sec", "0 sec", text)
    return re.sub(r"\b\d+\.\d+(e-?\d+)?(?=\s*(s|ms|us)\b)", "0", text)


class Witness:
    """Sees warnings, log records, lines on stderr and errors that nobody can catch."""

    def __init__(self, action: str = "always") -> None:
        self._action: Any = action
        self._log = _Log()
        self._unraisable: list[str] = []
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)
        self._position = 0
        self._printed = io.StringIO()
        self._warned: list[warnings.WarningMessage] = []

    def __enter__(self) -> Witness:
        sys.stderr.flush()
        self._stack = contextlib.ExitStack()
        before = os.dup(2)
        os.dup2(self._file.fileno(), 2)
        self._stack.callback(lambda: (sys.stderr.flush(), os.dup2(before, 2), os.close(before)))
        logger = logging.getLogger("jax")
        logger.addHandler(self._log)
        self._stack.callback(logger.removeHandler, self._log)
        hook = sys.unraisablehook
        sys.unraisablehook = lambda u: self._unraisable.append(f"{u.exc_type.__name__} {u.err_msg}")
        self._stack.callback(setattr, sys, "unraisablehook", hook)
        self._stack.enter_context(contextlib.redirect_stdout(self._printed))
        self._warned = self._stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter(self._action)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()
        self._file.close()

    def take(self) -> dict[str, Any]:
        """What was seen since this was last asked."""
        end = os.lseek(self._file.fileno(), 0, os.SEEK_END)
        text = os.pread(self._file.fileno(), end - self._position, self._position).decode()
        self._position = end
        lines = [re.sub(r"^[A-Z]\d{4} .*?\] ", "", plain(line)) for line in text.splitlines()]
        seen = {
            "warnings": [
                (w.category.__name__, plain(str(w.message)), w.filename, w.lineno)
                for w in self._warned
            ],
            "logged": list(self._log.kept),
            "lines on stderr": lines,
            "printed": plain(self._printed.getvalue()),
            "lost errors": list(self._unraisable),
            "user code": list(EVENTS),
        }
        for kept in (self._warned, self._log.kept, self._unraisable, EVENTS):
            kept.clear()
        self._printed.seek(0)
        self._printed.truncate()
        return seen


# --- A run ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def states_kept() -> Iterator[None]:
    """Each state of the configuration is what it was before, also in this thread alone."""
    before = [(state, state.get_local(), state.get_global()) for state in all_states().values()]
    values = {name: holder.value for name, holder in jax.config._value_holders.items()}
    try:
        yield
    finally:
        for name, value in values.items():
            if jax.config._value_holders[name].value is not value:
                jax.config.update(name, value)
        for state, local, everywhere in before:
            if state.get_local() is not local:
                state.set_local(local)
            if state.get_global() is not everywhere:
                state.set_global(everywhere)


def forget_locals() -> None:
    """No state of the configuration has a value of this thread: no context was ever entered."""
    unset = jax._src.config.config_ext.unset
    for state in all_states().values():
        if state.name not in ("trace_state", "trace_state_strong_ref"):
            state.set_local(unset)


@dataclass
class Seen:
    """One call, before it is described."""

    change: str
    entry: str
    call: str
    step: str
    result: Any
    error: Exception | None
    args: tuple
    kwargs: dict
    beside: dict[str, Any]
    hit: bool

    def described(self) -> dict[str, Any]:
        """All of it as plain data."""
        inputs = input_leaves((self.args, self.kwargs))
        first = self.args[0] if self.args else None
        found, deleted = describe(self.result, self.error, inputs, first)
        if self.error is not None:
            found = (found[0], found[1], plain(found[2]))
        notes = getattr(self.error, "__notes__", None)
        return {"outcome": found, "deleted inputs": deleted, "notes": notes, **self.beside}


class Run:
    """Makes the calls of subjects on one side."""

    def __init__(self, subjects: dict[str, Subject], deep: bool, witness: Witness) -> None:
        self.subjects = subjects
        self.seen: list[Seen] = []
        self._witness = witness
        self._deep = deep
        self._same: dict[tuple[str, str], tuple[tuple, dict]] = {}

    def _arguments(self, entry: str, call: Call) -> tuple[tuple, dict]:
        if not call.same:
            return call.make(), call.kwargs()
        key = entry, call.label
        if key not in self._same:
            self._same[key] = call.make(), call.kwargs()
        return self._same[key]

    def calls(self, entries: Iterable[str], turns: int) -> list[list[tuple]]:
        """The calls of some turns, with arguments that are made now, while nothing is changed."""
        return [
            [
                (entry, call, *self._arguments(entry, call))
                for entry in entries
                for call in self.subjects[entry].calls
                if self._deep or not call.deep
            ]
            for _ in range(turns)
        ]

    def make(self, change: str, step: str, turns: list[list[tuple]]) -> None:
        """Make these calls."""
        for i, calls in enumerate(turns):
            for entry, call, args, kwargs in calls:
                result = error = None
                about = {entry: self.subjects[entry]}
                hits = _hits(about)
                self._witness.take()
                try:
                    result = call.function(*args, **kwargs)
                except Exception as raised:
                    error = raised.with_traceback(None)
                beside = self._witness.take()
                at = f"call {i + 1} {step}"
                self.seen.append(
                    Seen(
                        change, entry, call.label, at, result, error, args, kwargs, beside,
                        _hits(about) != hits,
                    )
                )

    def take(self) -> list[tuple]:
        """(change, entry, call, step, hit, observation) of each call since this was last asked."""
        seen = [(s.change, s.entry, s.call, s.step, s.hit, s.described()) for s in self.seen]
        self.seen.clear()
        self._witness.take()
        return seen


def _described_more(one: list[str], two: list[str]) -> bool:
    """Was JAX's table of descriptions asked besides, in a call that was handed on?

    jaxlib's C++ asks it in the first call of a kind, and has not seen those that were fast.
    """
    return [event for event in two if event != "pytype_aval_mappings"] == one


def _asked_more(jax_did: list[str], we_did: list[str]) -> bool:
    """Were custom nodes and static arguments asked by a miss, and nothing else done, beside JAX?

    What no plan fits, or a plan is made of, is looked at before JAX looks at it, and once by JAX's
    Python function where jaxlib knew it.
    """
    ours, theirs = Counter(we_did), Counter(jax_did)
    ours["eq"] = theirs["eq"] = 0
    more = ours - theirs
    return not theirs - ours and all(
        what in ("flatten", "unflatten", "hash") for what in more
    )


def _without_eq(did: list[str]) -> list[str]:
    return [what for what in did if what != "eq"]


def _hits(subjects: dict[str, Subject]) -> dict[str, int]:
    counts = jaxmarshal.stats()
    return {name: counts[name]["hits"] for s in subjects.values() for name in s.hits}


def _one_side(
    entries: list[Any], changes: list[Change], deep: bool, action: str, accelerated: bool
) -> list[tuple]:
    """What was seen of each call, in order."""
    jaxmarshal.uninstall()
    jax.clear_caches()
    jaxmarshal.api.clear()
    jaxmarshal.reset_stats()
    seen = []
    with states_kept(), contextlib.ExitStack() as stack:
        forget_locals()
        early = {entry.name: entry.early() for entry in entries}    # before it is installed
        if accelerated:
            stack.enter_context(jaxmarshal.installed())
        subjects = {entry.name: entry.make(early[entry.name]) for entry in entries}
        witness = stack.enter_context(Witness(action))
        run = Run(subjects, deep, witness)
        before = _hits(subjects)
        run.make("nothing", "while warming up", run.calls(subjects, WARM))
        _check_warm(run, before if accelerated else None)
        seen += run.take()
        for change in changes:
            concerned = [name for name in subjects if name in (change.entries or subjects)]
            during, after = run.calls(concerned, CHANGED), run.calls(concerned, BACK)
            fusion.wait()    # what is compiled on another thread is not under the change
            with change.apply([subjects[name] for name in concerned]):
                run.make(change.name, "after the change", during)
            forget_locals()
            run.make(change.name, "after it was undone", after)
            seen += run.take()
    return seen


def _check_warm(run: Run, before: dict[str, int] | None) -> None:
    """Something succeeded before the change, and jaxmarshal was fast."""
    for entry in run.subjects:
        if all(s.error is not None for s in run.seen if s.entry == entry):
            errors = [repr(s.error) for s in run.seen if s.entry == entry]
            raise NothingCompared(f"{entry}: no warm call succeeded: {errors[:3]}")
    if before is None:
        return
    after = _hits(run.subjects)
    cold = [name for name in after if after[name] == before[name]]
    if cold:
        raise NothingCompared(f"no warm call of these was accelerated: {cold}")


@contextlib.contextmanager
def depth_made_up_for() -> Iterator[None]:
    """jaxlib loses some depth of recursion for good whenever flattening fails: there is more."""
    limit, before = sys.getrecursionlimit(), free_stack()
    sys.setrecursionlimit(limit + 10_000)
    try:
        yield
    finally:
        lost = before + 10_000 - free_stack()
        sys.setrecursionlimit(limit + max(lost, 0))


def compare(
    entries: Iterable[Any], changes: list[Change], deep: bool = True, action: str = "always"
) -> list[Difference]:
    """Warm caches, then one change after the other, each undone, on both sides.

    `deep` makes all calls, and not the most telling ones alone. `action` is that of the filter of
    warnings: "always" shows each, "default" the first from each place.

    Returns the first difference in each respect of each call under each change. What differs
    without any change is not reported again: `compare(entries, [])` is about that.
    """
    entries = list(entries)
    with depth_made_up_for():
        expected = _one_side(entries, changes, deep, action, accelerated=False)
        found = _one_side(entries, changes, deep, action, accelerated=True)
    if [x[:4] for x in expected] != [x[:4] for x in found]:
        raise NothingCompared("the two sides made different calls")
    differences: dict[tuple[str, str, str, str], Difference] = {}
    exempt = known()
    for (change, entry, call, step, _, one), (*_, hit, two) in zip(expected, found, strict=True):
        for what in one:
            if what == "user code" and _without_eq(one[what]) == _without_eq(two[what]):
                continue    # how often jaxlib's table compares depends on what else is in it
            if what == "user code" and not hit and (
                _asked_more(one[what], two[what]) or _described_more(one[what], two[what])
            ):
                continue
            key = change, entry, call, what
            is_known = (call, what) in exempt or (
                what in BESIDE and ("nothing", *key[1:]) in differences
            )
            if key not in differences and not is_known and one[what] != two[what]:
                differences[key] = Difference(
                    entry, change, call, step, what, *smallest(one[what], two[what])
                )
    gc.collect()
    return [d for d in differences.values() if (d.change == "nothing") is not bool(changes)]


def smallest(one: Any, two: Any) -> tuple[str, str]:
    """The parts at which two observations differ, as text."""
    if isinstance(one, (list, tuple)) and type(one) is type(two) and len(one) == len(two):
        for a, b in zip(one, two, strict=True):
            if a != b:
                return smallest(a, b)
    return repr(one), repr(two)


def report(differences: Iterable[Difference]) -> str:
    """The differences as text, for a failing test."""
    out = io.StringIO()
    for difference in differences:
        print(difference, file=out)
    return out.getvalue()
