"""The products that solvers compute on blocks of their matrices."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fmm import api
from fmm.kernels.plans.plan import VENDOR
from fmm.linalg.solver_library import SOLVER_TYPES, NumpySolvers

ROW_ALIGNMENT = 32  # number of entries; products are fast if the rows of the operands begin at multiples of this number


def aligned_copy(library: NumpySolvers, x: Any) -> Any:
    """Return a copy of a matrix or a stack with rows that begin at multiples of ROW_ALIGNMENT entries."""
    *shape, n = x.shape
    rows = library.empty((*shape, -(-n // ROW_ALIGNMENT) * ROW_ALIGNMENT), x)
    return library.overwrite(rows[..., :n], x)


def has_aligned_rows(library: NumpySolvers, x: Any) -> bool:
    """Return True if the rows of x, or its columns, begin at multiples of ROW_ALIGNMENT entries."""
    steps = library.element_steps(x)[-2:]
    return 1 in steps and max(steps) % ROW_ALIGNMENT == 0


def subtract_product(library: NumpySolvers, a: Any, b: Any, c: Any, limit: float | None) -> None:
    """Replace c by c - a b.

    fmm.matmul computes the product in a new array with the memory order of c, and a second step subtracts the new array
    from c. fmm.gemm would move as many bytes, since it copies c before its plan overwrites c, and would prepare its
    call more slowly than fmm.matmul.
    """
    if _is_column_major(library, c):
        a, b, c = library.transpose(b), library.transpose(a), library.transpose(c)
    (m, k), n = a.shape, b.shape[1]
    device = library.device(a)
    if has_product_plan(m, k, n, library.product_type(a), device, limit):
        c -= api.matmul(a, b, max_error_growth=limit)
    elif device == "cpu":
        api.gemm(a, b, c, alpha=-1, beta=1, out=c, max_error_growth=limit)
    else:  # fmm.gemm is not called, since its decisions would delay the hundreds of thin products of a solver
        library.subtract_product_by_library(a, b, c)


def multiply_in_place(library: NumpySolvers, a: Any, x: Any, limit: float | None) -> None:
    """Replace x by a x."""
    left, right = a, x
    if _is_column_major(library, x):
        left, right = library.transpose(x), library.transpose(a)
        x = left
    (m, k), n, device = left.shape, right.shape[1], library.device(a)
    if device == "cpu" or has_product_plan(m, k, n, library.product_type(a), device, limit):
        library.overwrite(x, api.matmul(left, right, max_error_growth=limit))
    else:
        library.overwrite(x, library.module.matmul(left, right))


def _is_column_major(library: NumpySolvers, x: Any) -> bool:
    """Return True if neighbours in a column of x are closer in memory than neighbours in a row."""
    down, across = library.element_steps(x)
    return abs(down) < abs(across)


@lru_cache(maxsize=4096)
def has_product_plan(m: int, k: int, n: int, dtype: str, device: str, limit: float | None) -> bool:
    """Return True if fmm computes a product of these sizes by a plan; results are cached until the process ends."""
    if dtype not in SOLVER_TYPES:
        return False
    try:
        return api.plan(m, k, n, dtype=dtype, device=device, max_error_growth=limit).plan != VENDOR
    except ImportError:  # CuPy is missing, so torch multiplies the tensors on the GPU
        return False
