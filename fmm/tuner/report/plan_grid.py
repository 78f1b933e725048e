"""What is chosen at each point of a square grid, asked at few of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

BLOCK = 8  # points of a block that is taken for one if its corners agree


def mapped(chosen: Callable[[int, int], Any], count: int) -> dict[tuple[int, int], Any]:
    """What is chosen at each of count x count points. A block whose corners agree is taken to be all alike, any other
    is cut into four, down to single points; so borders are exact, and only islands smaller than a block may be missed.
    """
    found: dict[tuple[int, int], Any] = {}

    def at(i: int, j: int) -> Any:
        if (i, j) not in found:
            found[i, j] = chosen(i, j)
        return found[i, j]

    def fill(i: range, j: range) -> None:
        corners = {at(x, y) for x in (i[0], i[-1]) for y in (j[0], j[-1])}
        if len(corners) == 1:
            found.update({(x, y): found[i[0], j[0]] for x in i for y in j if (x, y) not in found})
        elif max(len(i), len(j)) > 2:
            for x in _halves(i):
                for y in _halves(j):
                    fill(x, y)

    edges = sorted({*range(0, count, BLOCK), count - 1})
    blocks = [range(low, high + 1) for low, high in pairwise(edges)] or [range(count)]
    for i in blocks:
        for j in blocks:
            fill(i, j)
    return found


def _halves(points: range) -> Sequence[range]:
    """Two that share the middle point; one where there is none between."""
    middle = len(points) // 2
    return (points[: middle + 1], points[middle:]) if len(points) > 2 else (points,)
