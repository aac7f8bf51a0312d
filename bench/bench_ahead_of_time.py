"""`python -m pytest bench/bench_ahead_of_time.py`: the cases of the group `ahead_of_time`."""

GROUP = "ahead_of_time"


def test_case(run_case, case):
    """Three sides in turns, with the path asserted."""
    run_case(GROUP, case)
