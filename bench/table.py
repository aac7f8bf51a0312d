"""Print the comparison as a Markdown table.

    python bench/table.py [--group NAME ...] [--seconds S] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from cases import GROUPS
from measure import measure, meets, versions


def line(row: dict[str, Any]) -> str:
    """One row of the table; a missed bar is marked."""
    floor = f"{row['floor']:.1f}" if "floor" in row else ""
    over = f"{row['over_floor']:.2f}" if "floor" in row else ""
    least = "" if row["least_speedup"] is None else f"{row['least_speedup']:.3g}"
    most = "" if row.get("most_over_floor") is None else f"{row['most_over_floor']:.3g}"
    mark = "" if meets(row) else " missed"
    return (
        f"| {row['case']} | {row['reference']:.1f} | {row['jaxmarshal']:.1f} | {floor} "
        f"| {row['speedup']:.2f} | {least} | {over} | {most} |{mark}"
    )


def main() -> int:
    """Measure, print, and perhaps write the figures; 0 whether or not the bars are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", action="append", choices=sorted(GROUPS))
    parser.add_argument("--seconds", type=float, default=1.5, help="per case")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    facts = versions()
    print(", ".join(f"{name} {value}" for name, value in facts.items()), end="\n\n")
    print("| case | JAX µs | jaxmarshal µs | floor µs | × faster | at least | × floor | at most |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for group in options.group or GROUPS:
        for case in GROUPS[group]():
            rows.append(measure(case, options.seconds))
            print(line(rows[-1]), flush=True)
    if options.json:
        with open(options.json, "w") as out:
            json.dump({"versions": facts, "rows": rows}, out, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
