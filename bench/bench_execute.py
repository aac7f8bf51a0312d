"""`python -m pytest bench/bench_execute.py`: the cases of the group `execute`."""

GROUP = "execute"


def test_case(run_case, case):
    """Three sides in turns, with the path asserted."""
    run_case(GROUP, case)
