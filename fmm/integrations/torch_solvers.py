"""Installation of fmm in torch.linalg: the solvers' operators at a key of torch's dispatcher, below autograd.

A replaced operator calls fmm.linalg where the model predicts a gain, and torch's own kernel otherwise. torch computes
gradients by its own formulas, which use the same operators. Results have torch's layout, column-major.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from fmm.integrations.install_targets import CannotInstallError, UndoFunction
from fmm.integrations.torch_kernels import bypass_fmm, bypass_state
from fmm.linalg import qr_factors
from fmm.linalg.arguments import is_square
from fmm.linalg.cholesky_qr import qr_of_tall_stacks
from fmm.linalg.cholesky_recursion import cholesky_block_side, cholesky_of_stacks
from fmm.linalg.halving_rules import SMALLEST_GAINING_SIDE
from fmm.linalg.inverse import inverse_panel_width, invert_stacks
from fmm.linalg.lu_factors import lu_of_stacks, solve_by_factors
from fmm.linalg.solver_library import TorchSolvers
from fmm.linalg.triangular_recursion import TriangularForm, solve_triangular_without_gradient, triangular_halving_count

SolverFunction = Callable[..., Any]  # returns the operator's result, or None if torch's own kernel must run


def column_major_copy(x: Any) -> Any:
    """Return a column-major copy, the layout of the results of torch.linalg."""
    return x.mT.contiguous().mT


def zero_info_array(a: Any) -> Any:
    """Return the `info` of a factorization without errors: a zero for each matrix of a stack."""
    return a.new_zeros(a.shape[:-2], dtype=torch.int32)


def cholesky_ex(library: TorchSolvers, a: Any, *, upper: bool = False, check_errors: bool = False) -> Any:
    """Return the result of torch's operator linalg_cholesky_ex; None if no speedup is predicted."""
    if not cholesky_block_side(library, a, None):
        return None
    # the factor must be column-major; the adjoint of a row-major lower factor is a column-major upper factor
    factor = cholesky_of_stacks(library, library.adjoint(a) if upper else a, None, column_major=not upper)
    return library.adjoint(factor) if upper else factor, zero_info_array(a)


def solve_triangular(
    library: TorchSolvers, a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """Return the result of torch's operator linalg_solve_triangular.

    Return None if no speedup is predicted, or if the shapes do not match: torch's own kernel raises the error.
    """
    if not is_square(a) or b.dim() < 2 or b.shape[-2 if left else -1] != a.shape[-1]:
        return None
    if not triangular_halving_count(library, a, b.shape[-1 if left else -2], None):
        return None
    return column_major_copy(
        solve_triangular_without_gradient(library, a, b, TriangularForm(not upper, unitriangular, left), None)
    )


def inv_ex(library: TorchSolvers, a: Any, *, check_errors: bool = False) -> Any:
    """Return the result of torch's operator linalg_inv_ex; None if no speedup is predicted."""
    return (
        (column_major_copy(invert_stacks(library, a, None)), zero_info_array(a))
        if inverse_panel_width(library, a, None)
        else None
    )


def qr(library: TorchSolvers, a: Any, mode: str = "reduced") -> Any:
    """Return the result of torch's operator linalg_qr; None if no speedup is predicted."""
    if mode not in qr_factors.QR_MODES or not qr_factors.prefers_cholesky_qr(library, a, mode == "reduced", None):
        return None
    q, r = qr_of_tall_stacks(library, a, None, mode == "reduced")
    return a.new_empty(0) if q is None else column_major_copy(q), column_major_copy(r)


def lu_factor_ex(library: TorchSolvers, a: Any, *, pivot: bool = True, check_errors: bool = False) -> Any:
    """Return the result of torch's operator linalg_lu_factor_ex; None if no speedup is predicted."""
    if not pivot or not is_square(a) or (factors := lu_of_stacks(library, a, None)) is None:
        return None
    return column_major_copy(factors.lu), factors.pivots + library.first_pivot, zero_info_array(a)


def solve_ex(library: TorchSolvers, a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    """Return the result of torch's operator _linalg_solve_ex for right-hand sides that are matrices.

    Return None if the right-hand sides are vectors, if `left` is False, or if no speedup is predicted.
    """
    matches = left and is_square(a) and a.dim() == b.dim() and a.shape[:-1] == b.shape[:-1]
    transposed = a.is_contiguous() and not a.is_complex() and solve_ex_factors_transpose()
    if not matches or (factors := lu_of_stacks(library, a.mT if transposed else a, None)) is None:
        return None
    x = solve_by_factors(library, factors, b, None, "T" if transposed else "N")
    return column_major_copy(x), column_major_copy(factors.lu), factors.pivots + library.first_pivot, zero_info_array(a)


@cache
def solve_ex_factors_transpose() -> bool:
    """Return True if torch's _linalg_solve_ex factors the transpose of a real contiguous matrix, as older versions do.

    torch's formulas of gradients expect these factors. The convention is the same on all devices.
    """
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64, device="cpu")
    with bypass_fmm():
        _, lu, _, _ = torch.ops.aten._linalg_solve_ex(a, a)
    return bool(lu[0, 0] == 2)  # the first pivot is the largest entry of the first row of a; 3 in the first column


TORCH_SOLVERS: dict[str, SolverFunction] = {
    "linalg_cholesky_ex": cholesky_ex,
    "linalg_solve_triangular": solve_triangular,
    "linalg_inv_ex": inv_ex,
    "linalg_qr": qr,
    "linalg_lu_factor_ex": lu_factor_ex,
    "_linalg_solve_ex": solve_ex,
}
# All of fmm's kernels that were registered in torch's dispatcher in this process. No kernel is freed, since a thread
# may still run a kernel after its removal.
_registered_kernels: list[Any] = []


def install_solvers(key: str) -> UndoFunction:
    """Replace the solvers' operators at this dispatch key; return the function that restores torch's kernels."""
    try:
        kernels = {name: torch.library.get_kernel(f"aten::{name}", key) for name in TORCH_SOLVERS}
    except RuntimeError as error:  # torch was built without a kernel of the operator for this key
        raise CannotInstallError(str(error)) from error
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns if a kernel replaces another kernel
        for name, solver in TORCH_SOLVERS.items():
            library.impl(name, solver_kernel(solver, kernels[name]), key, with_keyset=True)
    _registered_kernels.extend(torch.library.get_kernel(f"aten::{name}", key) for name in TORCH_SOLVERS)
    return library._destroy  # type: ignore[no-any-return]


def solver_kernel(solver: SolverFunction, own: Any) -> SolverFunction:
    """Return the kernel that calls a solver, and calls torch's own kernel if the solver declines."""

    def call_solver_kernel(keys: Any, *operands: Any, **options: Any) -> Any:
        result = run_solver(solver, operands, options)
        return own.call_boxed(keys, *operands, **options) if result is None else result

    return call_solver_kernel


def run_solver(solver: SolverFunction, operands: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return a solver's result.

    Return None for small matrices, for calls that only torch can compute, and if the solver fails.
    """
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    if max(tensors[0].shape[-2:], default=0) < SMALLEST_GAINING_SIDE or getattr(bypass_state, "on", False):
        return None
    library = TorchSolvers()
    # inside the solver, torch itself multiplies small blocks; autograd records the solver's operator, and not the
    # products inside the solver
    with torch.no_grad(), bypass_fmm():
        try:
            return solver(library, *operands, **options) if library.is_plain(*tensors) else None
        except (RuntimeError, MemoryError, TypeError, ValueError):
            return None  # torch's own kernel raises its own exception, or returns the error as a number
