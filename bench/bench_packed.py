"""`python -m pytest bench/bench_packed.py`: the cases of the group `packed`."""

GROUP = "packed"


def test_case(run_case, case):
    """Both sides in turns, with the path asserted."""
    run_case(GROUP, case)
