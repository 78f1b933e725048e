"""Sforza, "A Strassen-based CUDA Implementation of A^t A Matrix Multiplication": where Algorithm 1 stops."""

from __future__ import annotations

from typing import Final

from fmm.perfmodel.papers.table import Cell, Table

CUTOFF: Final = 512
SHAPES: Final = ((256, 256), (512, 512), (1024, 1024), (2048, 2048), (1024, 8192), (512, 8192), (8192, 8192))


def cutoff_sum(m: int, n: int, cutoff: int) -> float:
    """mm + nn of Algorithm 1, for an m x n matrix A: the cutoff over the halves of its sides."""
    return cutoff / (m // 2) + cutoff / (n // 2)


def stops(m: int, n: int, cutoff: int) -> bool:
    """Does the recursion end here, as it must: on blocks that are small for the cutoff, for which mm + nn is large?"""
    return cutoff_sum(m, n, cutoff) >= 2


def stops_as_printed(m: int, n: int, cutoff: int) -> bool:
    """The same with the sign that is printed."""
    return cutoff_sum(m, n, cutoff) <= 2


def sforza_stop() -> Table:
    """Where Algorithm 1 ends by the printed rule, and by what is meant."""
    columns = ("m", "n", "mm + nn", "stops as printed", "stops as meant")
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (m, n, cutoff_sum(m, n, CUTOFF), stops_as_printed(m, n, CUTOFF), stops(m, n, CUTOFF)) for m, n in SHAPES
    )
    notes = (
        "Algorithm 1 prints stop <- (mm + nn) <= 2 with mm = CUTOFF/m2 and nn = CUTOFF/n2. These grow as the blocks "
        "shrink: as printed, the largest matrices are not divided at all, and small ones for ever. Meant is >= 2.",
    )
    return Table("sforza-stop", f"Algorithm 1's cutoff criteria, CUTOFF = {CUTOFF}", columns, rows, notes)


TABLES: Final = (sforza_stop,)
