"""Feed the handwritten digits to a device, batch by batch: plain JAX beside jaxmarshal.

Every batch is a small pytree of real data (scikit-learn ships it). Both libraries put the same
batches on the same device, taking turns; what they return is compared leaf by leaf. The exit
status is 1 where a comparison fails.
"""

import argparse
import sys
import time
from importlib.metadata import version

import jax
import numpy as np
from sklearn.datasets import load_digits

import jaxmarshal


def make_batches(size):
    """The digits as full batches: what a training loop hands over before each step."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int32)
    index = np.arange(len(labels), dtype=np.int32)
    batches = []
    for start in range(0, len(labels) - size + 1, size):
        rows = slice(start, start + size)
        batches.append(
            {
                "image": images[rows],
                "label": labels[rows],
                "meta": {"index": index[rows], "weight": size / len(labels)},
            }
        )
    return batches


def differences(expected, actual):
    """What differs between two device pytrees, one sentence each; none where they are the same."""
    expected_leaves, expected_tree = jax.tree_util.tree_flatten_with_path(expected)
    actual_leaves, actual_tree = jax.tree_util.tree_flatten_with_path(actual)
    if expected_tree != actual_tree:
        return [f"the tree is {actual_tree}, not {expected_tree}"]
    found = []
    for (path, want), (_, got) in zip(expected_leaves, actual_leaves, strict=True):
        where = jax.tree_util.keystr(path)
        if type(want) is not type(got):
            found.append(f"{where}: type is {type(got)}, not {type(want)}")
            continue
        for name in ("shape", "dtype", "weak_type", "sharding", "committed"):
            if getattr(want, name) != getattr(got, name):
                found.append(f"{where}: {name} is {getattr(got, name)}, not {getattr(want, name)}")
        if not np.array_equal(np.asarray(want), np.asarray(got)):
            found.append(f"{where}: the values differ")
    return found


def seconds_per_batch(put, batches):
    """The mean time of one call of `put`, and what the calls returned."""
    start = time.perf_counter()
    results = [put(batch) for batch in batches]
    elapsed = time.perf_counter() - start
    jax.block_until_ready(results)
    return elapsed / len(batches), results


def measure(target, batches, rounds):
    """One row of the table: both libraries on the same batches, with the same target device."""

    def reference(batch):
        return jax.device_put(batch, target)

    def accelerated(batch):
        return jaxmarshal.device_put(batch, target)

    found = []
    for batch in batches:  # also the warm-up
        found += differences(reference(batch), accelerated(batch))

    before = jaxmarshal.stats()["device_put"]
    best = {reference: float("inf"), accelerated: float("inf")}
    for number in range(rounds):
        order = (reference, accelerated) if number % 2 else (accelerated, reference)
        for put in order:
            seconds, _ = seconds_per_batch(put, batches)
            best[put] = min(best[put], seconds)
    after = jaxmarshal.stats()["device_put"]

    return {
        "target": "none" if target is None else str(target),
        "batches": str(len(batches)),
        "JAX µs": f"{best[reference] * 1e6:.1f}",
        "jaxmarshal µs": f"{best[accelerated] * 1e6:.1f}",
        "speedup": f"{best[reference] / best[accelerated]:.2f} ×",
        "hits": str(after["hits"] - before["hits"]),
        "misses": str(after["misses"] - before["misses"]),
        "same": "no" if found else "yes",
    }, found


def print_table(rows, title):
    """Prints the rows with rich where it is installed, and as aligned columns elsewhere."""
    names = list(rows[0])
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(len(name), *(len(row[name]) for row in rows)) for name in names]
        print(title)
        for cells in (names, *([row[name] for name in names] for row in rows)):
            print("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))
        return
    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, justify="left" if name == "target" else "right")
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)


def positive(text):
    """An argument that counts something."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--batch", type=positive, default=64, help="images per batch (64)")
    parser.add_argument("--rounds", type=positive, default=20, help="rounds, the best counts (20)")
    options = parser.parse_args(arguments)
    options.batches = make_batches(options.batch)
    if not options.batches:
        parser.error(f"--batch {options.batch} is more than the images there are")
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    device = jax.local_devices()[0]
    print(
        f"Python {sys.version.split()[0]}, JAX {version('jax')}, "
        f"jaxmarshal {version('jaxmarshal')}, {device.platform}"
    )
    rows, problems = [], []
    for target in (None, device):
        row, found = measure(target, options.batches, options.rounds)
        rows.append(row)
        problems += [f"target {row['target']}, {text}" for text in found]
    leaves = len(jax.tree_util.tree_leaves(options.batches[0]))
    print_table(
        rows,
        f"device_put, {options.batch} digits per batch, {leaves} leaves, time per batch, "
        f"best of {options.rounds} rounds",
    )
    for text in problems[:20]:
        print(f"different: {text}", file=sys.stderr)
    if len(problems) > 20:
        print(f"different: {len(problems) - 20} more", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        status = main()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        status = 130
    sys.exit(status)
