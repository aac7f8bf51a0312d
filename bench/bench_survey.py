"""`python -m pytest bench/bench_survey.py`: the cases of the group `survey`."""

GROUP = "survey"


def test_case(run_case, case):
    """Three sides in turns, with the path asserted."""
    run_case(GROUP, case)
