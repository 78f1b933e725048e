"""How often a solver halves its matrix: as long as the products between the halves are predicted to gain.

A solver of a matrix of 2h rows is two solvers of h rows and a product of h x h matrices. The library's own function
does the same work inside, at the speed of the vendor's products. So halving gains where the product gains, less what
the library's function loses on smaller matrices. The rule of each solver, a least gain and a smallest half, stands for
this loss.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from fmm import api

SOLVER_TYPES = ("float32", "float64", "complex64", "complex128")
SMALLEST_GAINING_SIDE = 1024  # a matrix without a longer side is the library's own, on any device
ALIGNMENT = 128  # halves of large matrices are multiples of this number of rows: products of aligned operands are fast


class SplitRule(NamedTuple):
    """The smallest half of a solver's matrix, and the least speedup of the product between two halves."""

    smallest_half: int
    host_gain: float
    device_gain: float


# Measured on an H100 beside torch.linalg, which calls cuBLAS and cuSOLVER (`python -m benchmarks solvers`). Smaller
# halves lose: their products gain less, and the vendor's solvers are slow on small blocks. In float64 no Cholesky
# factorization up to 16384 gains.
TRIANGULAR_RULE = SplitRule(4096, 1.05, 1.5)
CHOLESKY_RULE = SplitRule(8192, 1.05, 3.0)
# A general inverse by LU and two triangular solves has 8/3 n^3 flops where the library's inverse has 2 n^3. On a GPU
# the library's inverse takes longer than its LU by more than this ratio.
INVERSE_RULE = SplitRule(8192, 1.6, 1.5)


def first_half(n: int) -> int:
    """Return the number of rows of the first half, the larger one."""
    half = (n + 1) // 2
    return -(-half // ALIGNMENT) * ALIGNMENT if n >= 8 * ALIGNMENT else half


def split_levels(n: int, columns: int | None, dtype: str, device: str, limit: float | None, rule: SplitRule) -> int:
    """Return how often to halve a matrix of n rows; 0 leaves the whole matrix to the library's own function.

    `columns` is the number of right sides; None if the products are square. `limit` is the largest error growth.
    """
    levels, half = 0, first_half(n)
    if dtype not in SOLVER_TYPES or columns == 0:
        return 0
    least_gain = rule.host_gain if device == "cpu" else rule.device_gain
    while half >= rule.smallest_half:
        if product_speedup(half, columns or half, dtype, device, limit) < least_gain:
            break
        levels, half = levels + 1, first_half(half)
    return levels


@lru_cache(maxsize=4096)
def product_speedup(n: int, columns: int, dtype: str, device: str, limit: float | None) -> float:
    """Return the predicted speedup of a product of an n x n and an n x columns matrix over the vendor's.

    Predictions are kept for the process: a later tuning changes the plans of products, not the halving.
    """
    try:
        return api.plan(n, n, columns, dtype=dtype, device=device, max_error_growth=limit).speedup
    except ImportError:  # tensors on a GPU without CuPy: products are torch's own
        return 1.0
