"""The groups of cases, and choosing among them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from jaxmarshal.benchmarks import (
    calls,
    compat,
    eager,
    libraries,
    meshes,
    packed,
    refused,
    survey,
    transfers,
)
from jaxmarshal.benchmarks.case import Case

GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    "device_put": transfers.device_put_cases,
    "shard_args": transfers.shard_args_cases,
    "execute": calls.execute_cases,
    "ahead_of_time": calls.ahead_of_time_cases,
    "jit": calls.jit_cases,
    "eager": eager.eager_cases,
    "asarray": eager.asarray_cases,
    "meshes": meshes.meshes_cases,
    "dispatch_v0_3": compat.dispatch_v0_3_cases,
    "packed": packed.packed_cases,
    "survey": survey.survey_cases,
    "fronts": libraries.front_cases,
    "refused": refused.refused_cases,
}


def force_devices(count: int = 8) -> None:
    """Have the CPU backend pretend to `count` devices; before the backend is initialised."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        flag = f"--xla_force_host_platform_device_count={count}"
        os.environ["XLA_FLAGS"] = f"{flags} {flag}".strip()


def select(
    groups: Iterable[str] | None = None,
    widths: Iterable[int] | None = None,
    texts: Iterable[str] | None = None,
    quick: bool = False,
) -> list[tuple[str, Case]]:
    """(group, case) for every case that is asked for, in the order of the groups.

    Args:
      groups: names of groups, or None for all.
      widths: numbers of leaves, or None for all.
      texts: parts of names, of which one has to be in the case's, or None for all.
      quick: only those of the quick selection.

    Raises:
      ValueError: for an unknown group.
    """
    chosen = list(GROUPS if groups is None else groups)
    unknown = [group for group in chosen if group not in GROUPS]
    if unknown:
        raise ValueError(f"unknown groups {unknown}; there are {list(GROUPS)}")
    wanted = None if widths is None else set(widths)
    parts = None if texts is None else tuple(texts)
    return [
        (group, case)
        for group in chosen
        for case in GROUPS[group]()
        if (wanted is None or case.leaves in wanted)
        and (parts is None or any(text in case.name for text in parts))
        and (case.quick or not quick)
    ]
