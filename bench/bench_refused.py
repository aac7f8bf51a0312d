"""`python -m pytest bench/bench_refused.py`: the cases of the group `refused`."""

GROUP = "refused"


def test_case(run_case, case):
    """Three sides in turns, with the path asserted."""
    run_case(GROUP, case)
