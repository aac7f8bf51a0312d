"""`report`: the counts as a person reads them, one row for each kind of call that programs make.

`stats()` counts at every entry point, also where one leads to another. Here a call counts once: the
steps that a fast `x[0]` takes and what a slow one calls are left out. Calls while JAX traces stand
apart: they cost nothing when the program runs.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jaxmarshal._jax import patching
from jaxmarshal._reports import counting, saving, sums
from jaxmarshal._reports.sums import Counts
from jaxmarshal.reasons import PUBLIC, TRACING, Reason, advice_for, reason_for

#: So many functions that the program defines have rows of their own, for each way to compile them.
MOST_FUNCTIONS = 12

#: How a row is called that sums up the other functions of an entry point.
_OTHERS = {"jit": "other jitted functions", "compiled_call": "others compiled ahead of time"}

_HEADINGS = ("call", "calls", "fast", "saved, at least", "not fast, mostly because of")


def counts() -> Counts:
    """What a report is made of, as plain data: `stats()` without calls inside of other calls."""
    found = counting.snapshot()
    for name, inner in counting.inner().items():
        if name not in PUBLIC:
            continue
        count, tracing = found[name], TRACING.get(name, TRACING[""])
        count["hits"] -= inner["hits"]
        for reason, number in inner["misses_by_reason"].items():
            if reason not in tracing:
                count["misses_by_reason"][reason] -= number
    for count in found.values():
        by_reason = {reason: n for reason, n in count["misses_by_reason"].items() if n > 0}
        count["misses_by_reason"] = by_reason
        count["misses"] = sum(by_reason.values())
    for name, functions in counting.by_function().items():
        found[name]["by_function"] = functions
    return found


@dataclass(frozen=True)
class Row:
    """One kind of call.

    Attributes:
      call: how programs write it.
      entry_point: its name in `stats()`.
      calls: how many there were outside of traces.
      fast: how many of them took the fast path.
      reason: why most of the others did not, or None.
      misses: how many had this reason.
      saved: the seconds that the fast calls have saved at least, or None where that is unknown.
    """

    call: str
    entry_point: str
    calls: int
    fast: int
    reason: Reason | None
    misses: int
    saved: float | None = None

    def kind(self) -> str:
        """What the reason is about: calls of this function, or all jitted functions alike."""
        if self.reason is None or self.entry_point not in _OTHERS:
            return self.call
        is_general = self.reason == reason_for(self.entry_point, self.reason.name)
        return PUBLIC[self.entry_point] if is_general else self.call

    def cells(self) -> tuple[str, ...]:
        """The texts of the row."""
        why = f"{self.reason.name} ({self.misses})" if self.reason else ""
        saved = _time(self.saved) if self.saved and self.fast else ""
        return self.call, f"{self.calls}", _percent(self.fast, self.calls), saved, why


def _time(seconds: float) -> str:
    """Two digits and a unit."""
    unit, name = next(
        ((unit, name) for unit, name in ((1, "s"), (1e-3, "ms")) if seconds >= unit), (1e-6, "µs")
    )
    number = seconds / unit
    return f"{number:.0f} {name}" if number >= 10 else f"{number:.1f} {name}"


def _percent(part: int, whole: int) -> str:
    """A share; 100 only where it is all, 0 only where it is nothing."""
    share = 100 * part / whole
    if part != whole:
        share = min(share, 99.9)
    if part:
        share = max(share, 0.1)
    return f"{share:.1f} %"


def _row(
    name: str, call: str, count: dict[str, Any], one_function: bool = False
) -> tuple[Row | None, int]:
    """The row of a kind of call, if there were any outside of traces; and the calls in traces."""
    reasons = dict(count["misses_by_reason"])
    tracing = sum(reasons.pop(reason, 0) for reason in TRACING.get(name, TRACING[""]))
    calls = count["hits"] + sum(reasons.values())
    if not calls:
        return None, tracing
    reason = max(reasons, key=lambda reason: reasons[reason]) if reasons else None
    row = Row(
        call, name, calls, count["hits"],
        reason_for(name, reason, count["hits"], reasons[reason], one_function) if reason else None,
        reasons[reason] if reason else 0,
        saving.saved(name, count["hits"]),
    )  # fmt: skip
    return row, tracing


def _rows(name: str, count: dict[str, Any]) -> tuple[list[Row], int]:
    """The rows of an entry point, one for each function that is known, and the calls in traces."""
    whole, tracing = _row(name, PUBLIC[name], count)
    functions = count.get("by_function", {})
    each = {call: _row(name, call, counts, True)[0] for call, counts in functions.items()}
    found = {call: row for call, row in each.items() if row is not None}
    if whole is None or not found:
        return [whole] if whole else [], tracing
    chosen = sorted(found, key=lambda call: -found[call].calls)
    if name in _OTHERS:
        chosen = chosen[:MOST_FUNCTIONS]
    known = sums.added({name: functions[call]} for call in chosen)
    (others,) = sums.less({name: {**count, "by_function": {}}}, known).values()
    rest, _ = _row(name, _OTHERS.get(name, PUBLIC[name]), others)
    return [*(found[call] for call in chosen), *([rest] if rest else [])], tracing


class Report:
    """The counts of a process, or of several, to be printed or shown in a notebook.

    Attributes:
      rows: a `Row` for each kind of call, the most frequent first. A jitted function, and one that
        was compiled ahead of time, has one of its own, with its name and the line of its
        definition; where there are many, those that were called least share one.
      tracing: the number of calls while JAX was tracing.
      inner: the number of calls at entry points inside of JAX, which calls that miss lead to.
      installed: is jaxmarshal installed now?
    """

    def __init__(self, counts: Counts, installed: bool = True) -> None:
        self.installed = installed
        self.rows: list[Row] = []
        self.tracing = self.inner = 0
        for name, count in counts.items():
            if name not in PUBLIC:
                self.inner += count["hits"] + count["misses"]
                continue
            rows, tracing = _rows(name, count)
            self.rows += rows
            self.tracing += tracing
        self.rows.sort(key=lambda row: -row.calls)

    def _title(self) -> str:
        calls = sum(row.calls for row in self.rows)
        state = "" if self.installed else " (it is not installed now)"
        if not calls:
            return f"jaxmarshal: no calls{state}"
        fast = _percent(sum(row.fast for row in self.rows), calls)
        saved = [row.saved for row in self.rows if row.saved is not None]
        least = f", at least {_time(sum(saved))} saved" if sum(saved) else ""
        return f"jaxmarshal: {calls} calls, {fast} of them fast{least}{state}"

    def _apart(self) -> list[str]:
        """What is not in the table."""
        lines = []
        if self.tracing:
            lines.append(
                f"Apart from these, {self.tracing} calls while JAX was tracing: they cost nothing "
                "when the program runs."
            )
        return lines

    def _advice(self) -> list[tuple[str, str]]:
        """What the reasons in the table mean, and what to do: (of what, text)."""
        return advice_for((row.kind(), row.reason) for row in self.rows if row.reason is not None)

    def __str__(self) -> str:
        lines = [self._title()]
        table = [_HEADINGS, *(row.cells() for row in self.rows)] if self.rows else []
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for call, *numbers, why in table:
            right = [text.rjust(width) for text, width in zip(numbers, widths[1:-1], strict=True)]
            lines.append(("  " + "  ".join([call.ljust(widths[0]), *right, why])).rstrip())
        lines += [f"{name}: {text}" for name, text in self._advice()]
        return "\n".join([*lines, *self._apart()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        def cells(texts: Iterable[str], kind: str) -> str:
            sides = ("left", "right", "right", "right", "left")
            return "".join(
                f'<{kind} style="text-align:{side};padding:0.1em 0.6em">'
                f"{html.escape(text)}</{kind}>"
                for text, side in zip(texts, sides, strict=True)
            )

        parts = [f"<p><b>{html.escape(self._title())}</b></p>"]
        if self.rows:
            body = "".join(f"<tr>{cells(row.cells(), 'td')}</tr>" for row in self.rows)
            head = f"<thead><tr>{cells(_HEADINGS, 'th')}</tr></thead>"
            parts.append(f"<table>{head}<tbody>{body}</tbody></table>")
        parts += [
            f"<p><code>{html.escape(name)}</code>: {html.escape(text)}</p>"
            for name, text in self._advice()
        ]
        parts += [f"<p>{html.escape(line)}</p>" for line in self._apart()]
        return "\n".join(parts)


def report() -> Report:
    """The calls since the start or the last `reset_stats()`, for a person to read.

    Returns:
      A `Report`. `print` shows a line for each kind of call that programs make, and for each
      function that they jit or compile, by its name and line: how many calls there were, the share
      that was fast, and why most of the others were not, with what to do about it. A notebook shows
      the same as a table. A call counts once, even if it leads to others.
      `stats()` has all counts as data.

      The time saved is what so many of the smallest calls of the kind save, by JAX's function and
      by ours, measured once in a process when the report is made: calls with more arguments save
      more. A clock in each call would cost a good part of what a fast call saves. `python -m
      jaxmarshal compare` runs the program both ways and measures its own calls.
    """
    return Report(counts(), bool(patching.installed_names()))
