"""`python -m pytest bench/bench_eager.py`: the cases of the group `eager`."""

GROUP = "eager"


def test_case(run_case, case):
    """Three sides in turns, with the path asserted."""
    run_case(GROUP, case)
