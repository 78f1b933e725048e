"""A sum over pairs of axes of two arrays, as a product of two matrices."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple


class Contraction(NamedTuple):
    """How the axes of both arrays are ordered for it, the product's sizes, and the result's shape."""

    left_axes: tuple[int, ...]
    right_axes: tuple[int, ...]
    size: tuple[int, int, int]
    shape: tuple[int, ...]


def contraction(left: tuple[int, ...], right: tuple[int, ...], axes: Any) -> Contraction | None:
    """numpy.tensordot's axes, read as it reads them; None where it would raise, or there is nothing to sum."""
    pairs = _pairs(len(left), len(right), axes)
    if not pairs or any(not (-len(left) <= i < len(left) and -len(right) <= j < len(right)) for i, j in pairs):
        return None
    over, under = ([i % len(left) for i, _ in pairs], [j % len(right) for _, j in pairs])
    if len({*over}) < len(over) or len({*under}) < len(under):
        return None
    if any(left[i] != right[j] for i, j in pairs):
        return None
    rows = [i for i in range(len(left)) if i not in over]
    columns = [j for j in range(len(right)) if j not in under]
    shape = (*(left[i] for i in rows), *(right[j] for j in columns))
    size = prod(left[i] for i in rows), prod(left[i] for i in over), prod(right[j] for j in columns)
    return Contraction((*rows, *over), (*under, *columns), size, shape)


def _pairs(left: int, right: int, axes: Any) -> list[tuple[int, int]]:
    """Which axis of one array is summed with which of the other; none where it cannot be told."""
    if isinstance(axes, int):
        return list(zip(range(left - axes, left), range(axes), strict=True)) if 0 < axes <= min(left, right) else []
    try:
        over, under = (list(x) if isinstance(x, tuple | list) else [x] for x in axes)
        return [(int(i), int(j)) for i, j in zip(over, under, strict=True)]
    except (TypeError, ValueError):
        return []
