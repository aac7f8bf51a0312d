"""The results of the self-check as text."""

from __future__ import annotations

from collections.abc import Sequence

from jaxmarshal.selfcheck.runner import Result, passed, uncovered

MARKS = {"same": "same", "different": "DIFFERENT", "failed": "FAILED", "inactive": "inactive"}


def _line(result: Result) -> list[str]:
    text = f"  {MARKS[result.outcome]:<10} {result.check.name:<38}"
    if result.outcome in ("same", "different"):
        text += f" {result.observations:>5} observations, {sum(result.hits.values())} fast calls"
    lines = [text.rstrip()]
    if result.detail:
        lines.append(f"             {result.detail}")
    return lines


def as_text(results: Sequence[Result], seconds: float) -> str:
    """A line for each check, what differs below it, and one line that sums up."""
    lines = ["check"]
    for result in results:
        lines += _line(result)
    for name in uncovered(results):
        own = [result for result in results if name in result.check.entry_points]
        reasons = sorted({reason for result in own for reason in result.misses})
        why = ", ".join(reasons) or "not called"
        lines.append(f"  note: {name} had no fast call here ({why})")
    for result in results:
        for what in result.lacking:
            lines.append(
                f"  note: {result.check.name}: without {what}: plain JAX cannot do it here"
            )
    wrong = [result.check.name for result in results if not passed([result])]
    if wrong:
        lines.append(f"  {len(wrong)} of {len(results)} checks NOT passed: {', '.join(wrong)}")
    else:
        lines.append(f"  all {len(results)} checks passed")
    lines.append(f"  {seconds:.0f} seconds")
    return "\n".join(lines)
