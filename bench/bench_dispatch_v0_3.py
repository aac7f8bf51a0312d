"""`python -m pytest bench/bench_dispatch_v0_3.py`: the cases of the group `dispatch_v0_3`."""

GROUP = "dispatch_v0_3"


def test_case(run_case, case):
    """Three sides in turns, with the path asserted."""
    run_case(GROUP, case)
