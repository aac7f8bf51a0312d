"""What is active here: the facts behind `python -m jaxmarshal doctor`."""

from __future__ import annotations

import os
import platform
from typing import Any

from jaxmarshal import fronts
from jaxmarshal._core.values import array_words, live_objects
from jaxmarshal._jax import patching, private
from jaxmarshal._reports import counting
from jaxmarshal._tools import activation
from jaxmarshal._version import __version__
from jaxmarshal.reasons import REASONS


def _what_is_missing(entry: patching.EntryPoint) -> list[str]:
    """What an entry point lacks in the installed JAX; nothing where that is not supported."""
    if entry.active or private.why_not_supported():
        return []
    lacking = list(private.lacking[entry.needs])
    if entry.name in private.missing:    # not for want of a name
        lacking.append(f"{entry.name}: {private.missing[entry.name]}")
    return lacking


def versions() -> dict[str, str]:
    """The versions of what takes part."""
    return {
        "jaxmarshal": __version__,
        "jax": private.JAX_VERSION,
        "jaxlib": private.JAXLIB_VERSION,
        "numpy": private.NUMPY_VERSION,
        "python": platform.python_version(),
    }


def examine() -> dict[str, Any]:
    """Versions, calibration and entry points, as plain data.

    Initialises JAX's default backend and makes one small array, so that the object layout is
    calibrated as it would be in a program.
    """
    import jax

    facts: dict[str, Any] = {
        "versions": versions(),
        "build": "debug" if live_objects.debug_build() else "release",
        "environment": {
            name: os.environ[name]
            for name in ("JAXMARSHAL", "JAXMARSHAL_EVENTS", "JAXMARSHAL_OBJECT_LAYOUT")
            if name in os.environ
        },
        "switched_off": patching.switched_off(),
        "activated": activation.is_activated(),
        "not_supported": private.why_not_supported(),
        "missing_names": dict(private.missing),
        "entry_points": {
            entry.name: {
                "active": entry.active,
                "installed": entry.name in patching.installed_names(),
                "lacks": _what_is_missing(entry),
            }
            for entry in patching.ENTRY_POINTS
        },
        "fronts": {
            front.name: {
                "library": front.library,
                "version": fronts.version_of(front),
                "installed": front.name in fronts.installed_names(),
                "inactive": fronts.why_inactive(front),
            }
            for front in fronts.FRONTS
        },
        "stats": counting.snapshot(),
    }
    try:
        array = private.device_put(0.0)
        facts["backend"] = jax.default_backend()
        facts["devices"] = len(jax.local_devices())
        if private.HAVE_LAYOUT_PROBE:
            array_words.read(array)
    except Exception as error:  # a doctor reports an illness, it does not catch it
        facts["backend_error"] = str(error)
    facts["object_layout"] = array_words.describe()
    return facts


def _where(offset: Any) -> str:
    if offset is None or offset == []:
        return "public attribute"
    if isinstance(offset, list):
        return "words " + ", ".join(map(str, offset)) + " of the runtime buffer"
    if isinstance(offset, tuple):
        return f"word {offset[1]} behind word {offset[0]} of the runtime buffer"
    return f"byte {offset}"


def _without_words(layout: dict[str, Any], environment: dict[str, str]) -> list[str]:
    """What it means where arrays of the default backend cannot be compared by their words."""
    if not layout["calibrated"] or (layout["vouched_for"] and layout["data_layout"]):
        return []
    lines = [
        "  so calls of compiled code (jit, compiled ahead of time, operations) are JAX's own here: "
        "no faster, and no slower"
    ]
    if "JAXMARSHAL_OBJECT_LAYOUT" in environment:
        lines.append("  unset JAXMARSHAL_OBJECT_LAYOUT in the environment to have them accelerated")
    return lines


def _entry_line(name: str, state: dict[str, Any], facts: dict[str, Any]) -> str:
    if not state["active"]:
        reason = facts["not_supported"] or "JAX lacks " + ", ".join(state["lacks"])
        status = f"inactive: {reason}"
    elif state["installed"]:
        status = "active, installed"
    else:
        status = "active, not installed"
        if facts["switched_off"]:
            status += f" (JAXMARSHAL={facts['environment']['JAXMARSHAL']})"
    return f"  {name:<24} {status}"


def _front_line(name: str, state: dict[str, Any]) -> str:
    """One line about an entry point of a library."""
    if state["inactive"]:
        return f"  {name:<24} off: {state['inactive']}"
    status = "active, installed" if state["installed"] else "active, not installed"
    return f"  {name:<24} {status} ({state['library']} {state['version']})"


def _stats_lines(stats: dict[str, dict[str, Any]]) -> list[str]:
    """Counts of the entry points that were called in this process, and what the reasons mean."""
    called = {name: counts for name, counts in stats.items() if counts["hits"] or counts["misses"]}
    if not called:
        return []
    lines, seen = ["calls in this process"], set()
    for name, counts in called.items():
        by_reason = counts["misses_by_reason"]
        text = "".join(f", {number} {reason}" for reason, number in by_reason.items())
        lines.append(f"  {name:<24} {counts['hits']} hits, {counts['misses']} misses{text}")
        seen.update(by_reason)
    for reason in REASONS:
        if reason.name in seen:
            lines.append(f"  {reason.name}: {reason.meaning} {reason.advice}")
    return lines


def _activation_lines(facts: dict[str, Any]) -> list[str]:
    """Whether JAXMARSHAL=on has an effect in this environment, and what is wrong with its value."""
    lines = [f"  {'activated':<24} {'yes' if facts['activated'] else 'no'}"]
    bad = patching.bad_switch()
    if bad:
        lines += [f"  {bad}"]
    elif "JAXMARSHAL" in facts["environment"] and not (
        facts["activated"] or facts["switched_off"]
    ):
        lines += ["  JAXMARSHAL=on has no effect before `python -m jaxmarshal activate`"]
    return lines


def report(facts: dict[str, Any]) -> str:
    """The facts as text for a terminal."""
    lines = ["versions"]
    lines += [f"  {name:<24} {version}" for name, version in facts["versions"].items()]
    lines += [f"  {'build':<24} {facts['build']}"]
    if "backend_error" in facts:
        lines += [f"  {'backend':<24} failed: {facts['backend_error']}"]
    else:
        lines += [f"  {'backend':<24} {facts['backend']}, {facts['devices']} local device(s)"]
    lines += [f"  {name:<24} {value}" for name, value in facts["environment"].items()]
    if facts["switched_off"]:
        lines += ["switched off", "  JAXMARSHAL is off in the environment: install() does nothing"]
    lines += _activation_lines(facts)
    if facts["not_supported"]:
        lines += ["not supported", f"  {facts['not_supported']}"]
    if facts["missing_names"]:
        lines += ["missing names"]
        lines += [f"  {name}: {why}" for name, why in facts["missing_names"].items()]
    layout = facts["object_layout"]
    lines += ["object layout"]
    for word in ("aval", "dtype", "sharding", "committed", "buffer", "data_layout", "data"):
        lines += [f"  {word:<24} {_where(layout[word])}"]
    lines += [f"  note: {note}" for note in layout["notes"]]
    lines += _without_words(layout, facts["environment"])
    lines += ["entry points"]
    lines += [_entry_line(name, state, facts) for name, state in facts["entry_points"].items()]
    lines += ["fronts of libraries"]
    lines += [_front_line(name, state) for name, state in facts["fronts"].items()]
    lines += _stats_lines(facts["stats"])
    return "\n".join(lines)
