"""`python -m pytest bench/bench_fronts.py`: the cases of the group `fronts`."""

GROUP = "fronts"


def test_case(run_case, case):
    """Three sides in turns, with the path asserted."""
    run_case(GROUP, case)
