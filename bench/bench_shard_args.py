"""`python -m pytest bench/bench_shard_args.py`: the cases of the group `shard_args`."""

GROUP = "shard_args"


def test_case(run_case, case):
    """Three sides in turns, with the path asserted."""
    run_case(GROUP, case)
