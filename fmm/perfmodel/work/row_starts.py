"""Where the rows of A, B and C begin in memory, and what that means for products and sums."""

from __future__ import annotations

from collections.abc import Sequence

from fmm.problem import Problem

# Bytes that a GPU's sums move at a time where rows begin at multiples of them, and those of three levels in one pass.
ACCESS = 16
DEEP_ACCESS = 8
DEEP = 7**3  # products of three levels in one pass


def rows_aligned(problem: Problem, unit: int) -> bool:
    """Does every row begin at a multiple of so many bytes?"""
    return all(aligned_operands(problem, unit))


def aligned_operands(problem: Problem, unit: int) -> tuple[bool, bool, bool]:
    """Does every row of A, of B, of C begin at a multiple of so many bytes, if the first does?"""
    itemsize = problem.itemsize
    b = problem.n * itemsize % unit == 0
    return problem.k * itemsize % unit == 0, b, b


def access_bytes(products: float, itemsize: int) -> int:
    """Bytes that a GPU's sums of a level with so many products move at a time, where rows begin at multiples of them.

    A thread of three levels in one pass has registers for two numbers at most.
    """
    return ACCESS if products < DEEP else min(2 * itemsize, DEEP_ACCESS)


def moved_unaligned(moved: Sequence[float], aligned: Sequence[bool]) -> float:
    """Of what is moved to and from A, B and C: how much belongs to those whose rows do not begin as they should."""
    return sum([x for x, begins in zip(moved, aligned, strict=True) if not begins])
