"""`python -m pytest bench/bench_device_put.py`: the cases of the group `device_put`."""

GROUP = "device_put"


def test_case(run_case, case):
    """Three sides in turns, with the path asserted."""
    run_case(GROUP, case)
