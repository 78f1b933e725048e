"""Random shapes of structured products, and what a run on them comes to: what the benchmarks of GPUs and CPUs share."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

GOAL = 0.98  # of the vendor's speed, that no shape should be below
COUNT, QUICK_COUNT = 60, 8
ASPECT = 64


def random_sides(count: int, number: int, largest: int, seed: int) -> list[tuple[int, ...]]:
    """Random sides, spread evenly by logarithm, none more than ASPECT times another; every second shape is odd."""
    rng = random.Random(seed)
    found: list[tuple[int, ...]] = []
    while len(found) < count:
        size = [int(largest ** rng.random()) for _ in range(number)]
        if max(size) <= ASPECT * min(size):
            found.append(tuple(max(x - x % 2, 2) if len(found) % 2 else x | 1 for x in size))
    return found


def summary(rows: Sequence[dict[str, Any]], kinds: Sequence[str]) -> Iterator[str]:
    """The slowest shapes, those that failed, then a line for each kind; the vendor's times are in milliseconds."""
    good = [row for row in rows if "ratio" in row]
    for row in sorted(good, key=lambda row: row["ratio"])[:20]:
        size = " x ".join(map(str, row["size"]))
        yield f"{row['kind']:18}{size:22}{row['ratio']:7.3f} {median(row['vendor']):9.4f} ms  {row['plan']}"
    for row in rows:
        if "failure" in row:
            yield f"{row['kind']:18}{row['size']}  {row['failure'][:100]}"
    for kind in kinds:
        found = sorted(row["ratio"] for row in good if row["kind"] == kind)
        if found:
            below = sum(x < GOAL for x in found)
            text = f"worst {found[0]:.3f}, median {median(found):.3f}, best {found[-1]:.3f}"
            yield f"{kind:18}{len(found)} shapes, {below} below {GOAL}: {text}"
