"""Try changes by hand: `python tests/adversarial/one.py WORDS [--entry NAME] [--core]`.

Runs the changes whose names contain the words, and prints what differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words")
    parser.add_argument("--entry", action="append")
    parser.add_argument("--core", action="store_true", help="the most telling calls alone")
    options = parser.parse_args()
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "harness")]
    from changes import all_changes
    from entries import ENTRIES
    from harness import compare, report

    changes = [c for c in all_changes() if options.words in c.name]
    if not changes:
        parser.error(f"no change is called {options.words}")
    chosen = [ENTRIES[name] for name in options.entry or ENTRIES]
    start = time.time()
    differences = compare(chosen, changes, deep=not options.core)
    print(report(differences), end="")
    took = f"{time.time() - start:.1f} s"
    print(f"{len(differences)} differences under {len(changes)} changes, {took}")
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
