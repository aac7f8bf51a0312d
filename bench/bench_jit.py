"""`python -m pytest bench/bench_jit.py`: the cases of the group `jit`."""

GROUP = "jit"


def test_case(run_case, case):
    """Three sides in turns, with the path asserted."""
    run_case(GROUP, case)
