"""pytest-benchmark over the cases: a test per case and side, with the path asserted first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cases import GROUPS
from measure import check_path

CASES = [case for group in GROUPS.values() for case in group()]


@pytest.mark.parametrize("side", ["reference", "jaxmarshal", "floor"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(benchmark, case, side):
    """One side of one case."""
    call = getattr(case, side)
    if call is None:
        pytest.skip("this case has no floor")
    check_path(case)
    benchmark.group = case.name
    benchmark(call)
