"""fmm.linalg.solve_triangular: by recursion if its products are fast enough, else by the library's own function."""

from __future__ import annotations

from typing import Any

from fmm.linalg.arguments import (
    check_limit,
    check_right_sides,
    check_square,
    checked_trans_option,
    common_arrays,
    write_result,
)
from fmm.linalg.solver_library import NumpySolvers, TorchSolvers
from fmm.linalg.triangular_recursion import TriangularForm, solve_triangular_without_gradient, triangular_block_side


def solve_triangular(
    a: Any,
    b: Any,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    *,
    left: bool = True,
    out: Any = None,
    max_error_growth: float | None = None,
) -> Any:
    """Return the solution x of op(a) x = b for a triangular matrix a, as scipy.linalg.solve_triangular does.

    Parameters
    ----------
    a : array
        A triangular matrix, or a stack of them, of NumPy, CuPy or torch. The entries on the other side of the diagonal
        are not read.
    b : array
        The right-hand sides: a vector, a matrix, or a stack of matrices. The stacks of a and b are broadcast.
    trans : {0, 1, 2, "N", "T", "C"}, optional
        op(a) is a (0 or "N"), its transpose (1 or "T"), or its conjugate transpose (2 or "C").
    lower : bool, optional
        If True, a is lower triangular; by default a is upper triangular.
    unit_diagonal : bool, optional
        If True, the diagonal of a is assumed to be 1 and is not read.
    left : bool, optional
        If False, solve x op(a) = b instead, as torch.linalg.solve_triangular does.
    out : array, optional
        Array for the solution. `out` may be `b`.
    max_error_growth : float, optional
        Limit on the error growth of the products, as in fmm.matmul.

    Returns
    -------
    array
        The solution x, with the shape of b; `out` if it was passed.

    Raises
    ------
    numpy.linalg.LinAlgError
        The diagonal of a NumPy array has a zero. For arrays of CuPy and torch, the solution then has inf and NaN.
    ValueError
        The shapes do not match.
    ImportError
        The arrays are NumPy's, and SciPy is not installed.

    Notes
    -----
    The matrix is halved as long as a speedup is predicted for the product between the halves. The library's own
    function solves the blocks on the diagonal, and whole systems for which no gain is predicted. The backward error is
    bounded norm-wise, as the error of the products is. inf and NaN propagate, as with SciPy's check_finite=False.
    Gradients are computed for tensors that require gradients.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> fmm.linalg.solve_triangular(np.array([[2.0, 0.0], [1.0, 4.0]]), np.array([2.0, 9.0]), lower=True)
    array([1., 2.])
    """
    check_limit(max_error_growth)
    library, (a, b) = common_arrays(a, b, as_in_scipy=True)
    check_square(a)
    if (op := checked_trans_option(trans)) != "N":
        a, lower = (library.transpose if op == "T" else library.adjoint)(a), not lower
    form = TriangularForm(bool(lower), bool(unit_diagonal), bool(left))
    if b.ndim == 1:
        column = b[:, None] if left else b[None, :]
        x = solve_stacks(library, a, column, form, max_error_growth)
        x = x[..., 0] if left else x[..., 0, :]
    else:
        x = solve_stacks(library, a, b, form, max_error_growth)
    return write_result(library, out, x)


def solve_stacks(library: NumpySolvers, a: Any, b: Any, form: TriangularForm, limit: float | None) -> Any:
    """Return the solutions of triangular systems for stacks of matrices; record gradients if a tensor requires them."""
    check_right_sides(a, b, -2 if form.left else -1)
    columns = b.shape[-1 if form.left else -2]
    if isinstance(library, TorchSolvers) and not (
        triangular_block_side(library, a, columns, limit) and library.is_plain(a, b)
    ):
        flags = {"upper": not form.lower, "left": form.left, "unitriangular": form.unit_diagonal}
        return library.module.linalg.solve_triangular(a, b, **flags)
    if library.needs_gradient(a, b):
        from fmm.linalg.torch_gradients import TriangularSolution

        return TriangularSolution.apply(a, b, form, limit)
    return solve_triangular_without_gradient(library, a, b, form, limit)
