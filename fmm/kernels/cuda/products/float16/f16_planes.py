"""Room for planes: float32 numbers as two of float16 each, as device_code/f16_planes.cuh writes them."""

from __future__ import annotations

from fmm.kernels.plans.memory_layout import whole

CHUNK = 64  # numbers of a line whose hi and lo stand behind each other
PLANES = 2  # of float16 for one float32 number
ITEM = 4  # bytes of a float32, and of its two planes; of an exponent
# Of the inner dimension, that the vendor multiplies at a time, where it does: with longer pieces uniform data have more
# than SGEMM's error.
PIECE = 256
ROOM = 256  # bytes: planes and exponents begin at a multiple of it


def plane_room(lines: int, length: int) -> int:
    """Bytes of the planes of so many lines."""
    return whole(ITEM * lines * whole(length, CHUNK), ROOM)


def exponent_room(count: int) -> int:
    """Bytes of so many exponents."""
    return whole(ITEM * count, ROOM)


def matrix_room(lines: int, length: int) -> int:
    """Bytes of a matrix without gaps behind which its planes are kept."""
    return whole(ITEM * lines * length, ROOM)


def kept_room(itemsize: int, lines: int, length: int) -> tuple[int, int]:
    """Bytes of a matrix, and of what is kept of it behind it, whichever of its sides is the inner dimension."""
    return matrix_room(lines, length), plane_room(lines, length) + exponent_room(max(lines, length))


def f16x3_scratch(m: int, k: int, n: int, count: int) -> int:
    """Bytes of workspace for a batch of products, whichever way their operands lie; with what is noted of the inner
    dimension where every entry is checked."""
    left = max(plane_room(count * m, k), plane_room(count * k, m)) + exponent_room(count * m)
    right = max(plane_room(count * k, n), plane_room(count * n, k)) + exponent_room(count * n)
    return left + right + 2 * exponent_room(count * k) + ROOM
