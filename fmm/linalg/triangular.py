"""fmm.linalg.solve_triangular: by recursion if products gain, else by the library's own function."""

from __future__ import annotations

from typing import Any

from fmm.linalg.arguments import check_square, check_trans, common_arrays, write_result
from fmm.linalg.solver_library import NumpySolvers, TorchSolvers
from fmm.linalg.triangular_recursion import TriangularForm, solve_triangular_without_gradient, triangular_side


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
        A triangular matrix, or a stack, of NumPy, CuPy or torch. The other triangle is not read.
    b : array
        The right sides: a vector, a matrix or a stack. Stacks are broadcast.
    trans : {0, 1, 2, "N", "T", "C"}, optional
        op(a): a, its transpose, or its conjugate transpose.
    lower : bool, optional
        The lower triangle of a is used; by default the upper.
    unit_diagonal : bool, optional
        The diagonal is 1 and not read.
    left : bool, optional
        False solves x op(a) = b instead, as torch.linalg.solve_triangular does.
    out : array, optional
        Array for the solution; it may be b.
    max_error_growth : float, optional
        The largest error growth of the products, as in fmm.matmul.

    Returns
    -------
    array
        x, of the shape of b; `out` if it was passed.

    Raises
    ------
    numpy.linalg.LinAlgError
        A NumPy array has a zero on its diagonal. CuPy and torch return inf and NaN.
    ValueError
        The shapes do not match.
    ImportError
        NumPy arrays without SciPy.

    Notes
    -----
    The matrix is halved as long as the product between the halves is predicted to gain; blocks are solved by the
    library's own function, and so are matrices that do not gain. The backward error is norm-wise, as that of the
    products. inf and NaN propagate, as with SciPy's check_finite=False. Tensors that require gradients get them.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> fmm.linalg.solve_triangular(np.array([[2.0, 0.0], [1.0, 4.0]]), np.array([2.0, 9.0]), lower=True)
    array([1., 2.])
    """
    library, (a, b) = common_arrays(a, b)
    check_square(a)
    if (op := check_trans(trans)) != "N":
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
    """Return the solutions for stacks of matrices, with gradients for tensors that require them."""
    if b.ndim < 2 or b.shape[-2 if form.left else -1] != a.shape[-1]:
        raise ValueError(f"shapes of a {tuple(a.shape)} and b {tuple(b.shape)} are incompatible")
    columns = b.shape[-1 if form.left else -2]
    if isinstance(library, TorchSolvers) and not (
        triangular_side(library, a, columns, limit) and library.is_plain(a, b)
    ):
        flags = {"upper": not form.lower, "left": form.left, "unitriangular": form.unit_diagonal}
        return library.module.linalg.solve_triangular(a, b, **flags)
    if library.needs_gradient(a, b):
        from fmm.linalg.torch_gradients import TriangularSolution

        return TriangularSolution.apply(a, b, form, limit)
    return solve_triangular_without_gradient(library, a, b, form, limit)
