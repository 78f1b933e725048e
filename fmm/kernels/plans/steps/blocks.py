"""Blocks: how the sides of a matrix are cut, and the rectangles that come of it."""

from __future__ import annotations

from fmm.kernels.plans.steps.sums import Place


def side_cuts(length: int, parts: int, unit: int | None) -> list[tuple[int, int]]:
    """(start, size) of each part: sizes differing by at most one (no unit), or all but the last ones equal."""
    if unit is None:
        small, larger = divmod(length, parts)
        sizes = [small + (i < larger) for i in range(parts)]
    else:
        full = block_side(length, parts, unit)
        sizes = [min(full, max(length - i * full, 0)) for i in range(parts)]
    starts = [min(sum(sizes[:i]), length) for i in range(parts)]
    return list(zip(starts, sizes, strict=True))


def block_side(length: int, parts: int, unit: int) -> int:
    """The side of equal blocks: enough for all, and a multiple of the unit."""
    return -(-length // (parts * unit)) * unit


def operand_blocks(name: str, rows: int, cols: int, parts: tuple[int, int], unit: int | None) -> list[Place]:
    """The blocks of an operand, in row-major order."""
    across = side_cuts(cols, parts[1], unit)
    return [Place(name, r, c, h, w) for r, h in side_cuts(rows, parts[0], unit) for c, w in across]
