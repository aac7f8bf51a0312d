"""What the examples share: a loop with plain JAX beside the same loop with jaxmarshal."""

import argparse
import time

import jax
import numpy as np

import jaxmarshal


def same_bits(a, b):
    """Do two pytrees of results have the same structure, dtypes, shapes and bits?"""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(
        (x.dtype, x.shape, np.asarray(x).tobytes()) == (y.dtype, y.shape, np.asarray(y).tobytes())
        for x, y in pairs
    )


def seconds_per_step(loop, steps):
    """Run the loop once: the mean time of a step, and the loop's result."""
    start = time.perf_counter()
    result = jax.block_until_ready(loop(steps))
    return (time.perf_counter() - start) / steps, result


def fast_calls():
    """How many calls took jaxmarshal's fast path so far."""
    return sum(row.fast for row in jaxmarshal.report().rows)


def close(a, b, tolerance):
    """Do the numbers of two pytrees of results differ by no more than this, relatively?"""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.allclose(x, y, rtol=tolerance) for x, y in pairs)


def main(title, loop, steps, after_loop=None, tolerance=None):
    """Run `loop(steps)` both ways and print what came of it; the exit status of the program.

    Where another loop runs with jaxmarshal, which is compiled otherwise, its results may differ by
    a relative tolerance.
    """
    after_loop = after_loop or loop
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--steps", type=int, default=steps, help=f"steps of the loop ({steps})")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, the best counts (5)")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    options = parser.parse_args()
    steps, rounds = (10, 1) if options.quick else (options.steps, options.rounds)

    before, after, same = float("inf"), float("inf"), True
    fast_before = fast_after = 0
    with jaxmarshal.uninstalled():
        for each in {loop, after_loop}:
            each(2)  # JAX's own caches fill
    for _ in range(rounds):
        start = fast_calls()
        with jaxmarshal.uninstalled():  # plain JAX, even where something installed jaxmarshal
            seconds, expected = seconds_per_step(loop, steps)
        before = min(before, seconds)
        middle = fast_calls()
        with jaxmarshal.installed():  # a program of your own calls jaxmarshal.install() once
            seconds, result = seconds_per_step(after_loop, steps)
        after = min(after, seconds)
        fast_before += middle - start
        fast_after += fast_calls() - middle
        same = same and (
            same_bits(expected, result) if tolerance is None else close(expected, result, tolerance)
        )

    print(f"{title}: {steps} steps, JAX {jax.__version__}, {jax.default_backend()}")
    print(f"before, plain JAX:  {before * 1e6:8.1f} µs per step, {fast_before} fast calls")
    print(f"after, jaxmarshal:  {after * 1e6:8.1f} µs per step, {fast_after} fast calls")
    print(f"speedup:            {before / after:8.2f} ×")
    agreement = "identical bit for bit" if tolerance is None else f"equal within {tolerance}"
    print(f"results:            {agreement if same else 'DIFFERENT'}")
    print(jaxmarshal.report())
    return 0 if same else 1
