"""Draw how much faster a packed step is, by number and size of leaves: docs/packing.svg.

    python bench/packed_plot.py [--out docs/packing.svg] [--rounds 7]

A state of equal arrays goes through an elementwise step and is fed back, by `jax.jit` and by
`jaxmarshal.carry`, not donated, one device. The sides take turns; the best round of each counts, in
processor time of all threads, so that what else the machine does is hardly seen.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

import jaxmarshal

COUNTS = (4, 8, 16, 32, 64, 128, 256, 512)
#: Floats of a leaf, and how that is written.
SIZES = ((8, "32 B"), (256, "1 kB"), (1024, "4 kB"))

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 330, 58, 16, 96, 46
LOWEST, HIGHEST = 0.5, 32.0

STYLE = """
.jm-axis{stroke:var(--md-default-fg-color--light,#777);stroke-width:1}
.jm-one{stroke:var(--md-default-fg-color--light,#777);stroke-width:1;stroke-dasharray:4 4}
.jm-curve{fill:none;stroke:var(--drawing-fast,#00897b);stroke-width:2.2}
.jm-dot{fill:var(--drawing-fast,#00897b)}
.jm-text{fill:var(--md-default-fg-color,#777);font-size:13px}
""".strip()


def _step(state: Any) -> Any:
    return [x * 0.5 + 0.5 for x in state]


def speedup(count: int, size: int, rounds: int) -> float:
    """Processor time of a step of `jax.jit` over that of a carry."""
    functions = (jax.jit(_step), jaxmarshal.carry(_step))
    states = [functions[i]([jnp.ones(size) for _ in range(count)]) for i in (0, 1)]
    steps = max(5, 20_000 // (count * max(1, size // 64)))
    best = [math.inf, math.inf]
    for turn in range(2 * rounds):
        i = (turn + turn // 2) % 2
        state, function = jax.block_until_ready(states[i]), functions[i]
        started = time.process_time()
        for _ in range(steps):
            state = function(state)
        jax.block_until_ready(jax.tree.leaves(state))
        best[i] = min(best[i], (time.process_time() - started) / steps)
        states[i] = state
    return best[0] / best[1]


def _x(count: int) -> float:
    share = math.log(count / COUNTS[0]) / math.log(COUNTS[-1] / COUNTS[0])
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(ratio: float) -> float:
    share = math.log(min(max(ratio, LOWEST), HIGHEST) / LOWEST) / math.log(HIGHEST / LOWEST)
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def drawing(curves: dict[str, list[float]]) -> str:
    """The plot as SVG: a curve for each size, × faster over number of leaves, both logarithmic."""
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif">',
        f"<style>\n{STYLE}\n</style>",
        f'<path class="jm-axis" fill="none" d="M{LEFT},{TOP} V{floor} H{right}"/>',
        f'<path class="jm-one" d="M{LEFT},{_y(1):.1f} H{right}"/>',
    ]
    for count in COUNTS:
        lines.append(
            f'<text class="jm-text" text-anchor="middle" x="{_x(count):.1f}" y="{floor + 18}">'
            f"{count}</text>"
        )
    for ratio in (0.5, 1, 2, 4, 8, 16, 32):
        lines.append(
            f'<text class="jm-text" text-anchor="end" x="{LEFT - 7}" y="{_y(ratio) + 4:.1f}">'
            f"{ratio} ×</text>"
        )
    middle = (LEFT + right) / 2
    lines.append(
        f'<text class="jm-text" text-anchor="middle" x="{middle}" y="{floor + 38}">leaves</text>'
    )
    for name, ratios in curves.items():
        points = [(_x(count), _y(r)) for count, r in zip(COUNTS, ratios, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        lines.append(f'<polyline class="jm-curve" points="{path}"/>')
        lines += [f'<circle class="jm-dot" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in points]
        lines.append(
            f'<text class="jm-text" x="{right + 8}" y="{points[-1][1] + 4:.1f}">{name} each</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    default = Path(__file__).resolve().parents[1] / "docs" / "packing.svg"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    curves: dict[str, list[float]] = {}
    for size, name in SIZES:
        curves[name] = [speedup(count, size, options.rounds) for count in COUNTS]
        cells = " ".join(f"{count}: {r:.2f}" for count, r in zip(COUNTS, curves[name], strict=True))
        print(f"JAX {jax.__version__}, {name} each: {cells}", flush=True)
    options.out.write_text(drawing(curves))


if __name__ == "__main__":
    main()
