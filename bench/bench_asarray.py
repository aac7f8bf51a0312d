"""`python -m pytest bench/bench_asarray.py`: the cases of the group `asarray`."""

GROUP = "asarray"


def test_case(run_case, case):
    """Three sides in turns, with the path asserted."""
    run_case(GROUP, case)
