"""Worker processes, forked and spawned, that each soak for a while.

    python soak/workers.py fork|spawn [--seconds 20] [--workers 4] [--threads 2]

Forked workers come of a process that has imported JAX and jaxmarshal, and has no backend yet, which
is when JAX can be forked. Prints one line of JSON, the sums over the workers; exit status 1 if a
worker saw a divergence, left something over, or did not end in order.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import warnings
from typing import Any

from stress import soak


def work(queue: Any, seconds: float, threads: int, seed: int) -> None:
    """One worker."""
    warnings.simplefilter("ignore")
    queue.put(soak(seconds, threads, seed, collect=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("method", choices=["fork", "spawn"])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    context = multiprocessing.get_context(options.method)
    queue = context.Queue()
    workers = [
        context.Process(target=work, args=(queue, options.seconds, options.threads, seed))
        for seed in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    found = []
    while len(found) < len(workers) and any(worker.is_alive() for worker in workers):
        try:
            found.append(queue.get(timeout=1))
        except Exception:    # empty: look again whether the workers live
            continue
    for worker in workers:
        worker.join()
    failed = [worker.exitcode for worker in workers if worker.exitcode]
    report = {
        "workers": options.workers, "threads": options.workers * options.threads,
        "calls": sum(one["calls"] for one in found), "faults": sum(one["faults"] for one in found),
        "divergences": [text for one in found for text in one["divergences"]],
        "left": {"arrays": sum(one["left"]["arrays"] for one in found)},
        "hits": sum(one["hits"] for one in found), "failed": failed,
    }  # fmt: skip
    print(json.dumps(report))
    lost = failed or len(found) < len(workers)
    return 1 if lost or report["divergences"] or any(report["left"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
