"""`python -m pytest bench/bench_meshes.py`: the cases of the group `meshes`."""

GROUP = "meshes"


def test_case(run_case, case):
    """Three sides in turns, with the path asserted."""
    run_case(GROUP, case)
