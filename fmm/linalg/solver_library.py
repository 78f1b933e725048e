"""The functions of SciPy, CuPy and torch that solvers call: on whole matrices that do not gain, and on small blocks.

A function with a trailing `_block` works on two matrices in place; all others take stacks as well.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from fmm.arrays.detect import array_kind, check_dense, mixed_arrays_error


class NumpySolvers:
    """NumPy's and SciPy's functions, for arrays on the host."""

    linalg_error: type[Exception] = np.linalg.LinAlgError
    module: Any = np
    right_side_axes: tuple[int, ...] = (1, 2)  # numbers of axes of the right sides that the library's lstsq takes

    def device(self, x: Any) -> str:
        """Return the device as fmm.plan names it."""
        return "cpu"

    def product_type(self, x: Any) -> str:
        """Return the element type of products; an empty text where the library's own functions must answer."""
        return str(x.dtype.name) if has_scipy() else ""

    def is_plain(self, *arrays: Any) -> bool:
        """Return True if fmm may compute: no trace, transform or mode belongs to the library alone."""
        return True

    def needs_gradient(self, *arrays: Any) -> bool:
        """Return True if the result must have gradients: for torch alone."""
        return False

    def rank(self, rank: int, like: Any) -> Any:
        """Return a rank as the library's lstsq returns it."""
        return rank

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """Return a row-major array of this shape, of the type and on the device of `like`."""
        return self.module.empty(shape, like.dtype)

    def identity(self, n: int, like: Any) -> Any:
        """Return the identity matrix."""
        return self.module.eye(n, dtype=like.dtype)

    def transpose(self, x: Any) -> Any:
        """Return a view of matrices with rows and columns exchanged."""
        return x.swapaxes(-1, -2)

    def adjoint(self, x: Any) -> Any:
        """Return the conjugate transpose; a view of a real array."""
        return self.conjugate(self.transpose(x))

    def conjugate(self, x: Any) -> Any:
        """Return the conjugate of a complex array; a real array unchanged."""
        return x.conj() if x.dtype.kind == "c" else x

    def write(self, out: Any, x: Any) -> Any:
        """Copy x into `out` and return `out`."""
        out[...] = x
        return out

    def solve_block(self, a: Any, x: Any, lower: bool, unit_diagonal: bool) -> None:
        """Replace x by the solution of a y = x by BLAS's trsm, which reads only one triangle of a."""
        if x.size == 0:
            return
        blas = scipy_linalg("solve_triangular").blas.get_blas_funcs("trsm", (a, x))
        transposed = int(abs(a.strides[0]) > abs(a.strides[1]))  # a row-major matrix is its transpose in column-major
        stored, stored_lower = (a.T, not lower) if transposed else (a, lower)
        flags = {"lower": stored_lower, "diag": unit_diagonal}
        if abs(x.strides[0]) > abs(x.strides[1]):
            x[...] = blas(1, stored, x.T, side=1, trans_a=1 - transposed, **flags).T
        else:
            x[...] = blas(1, stored, x, side=0, trans_a=transposed, **flags)

    def condition_number(self, a: Any, inverse: Any, lower: bool, unit_diagonal: bool) -> float:
        """Return the condition number of a triangle of a, in the norm of the largest row sum; NaN for NaN entries."""
        first = 1 if unit_diagonal else 0  # distance of the nearest diagonal that is read
        triangle = self.module.tril(a, -first) if lower else self.module.triu(a, first)
        norm = abs(triangle).sum(-1).max() + first
        return float(norm * abs(inverse).sum(-1).max())

    def check_singular(self, diagonal: Any) -> None:
        """Raise SciPy's exception for a zero on the diagonal of a triangular matrix."""
        zeros = np.nonzero(diagonal == 0)[0]
        if zeros.size:
            raise np.linalg.LinAlgError(f"singular matrix: resolution failed at diagonal {zeros[0]}")

    def cholesky(self, a: Any, upper: bool = False) -> Any:
        """Return the Cholesky factor by the library's own function, which reads the lower triangle."""
        factor = self.module.linalg.cholesky
        return self.adjoint(factor(self.adjoint(a))) if upper else factor(a)

    def cholesky_block(self, a: Any) -> Any:
        """Return the lower Cholesky factor of a block; raise `linalg_error` where the block has none."""
        return self.cholesky(a)

    def inv(self, a: Any) -> Any:
        """Return the inverse by the library's own function."""
        return self.module.linalg.inv(a)

    def lu(self, a: Any) -> tuple[Any, list[int]] | None:
        """Return L and U in one matrix and the pivot rows, counted from 0; None for a singular matrix."""
        getrf = scipy_linalg("inv").get_lapack_funcs("getrf", (a,))
        lu, pivots, info = getrf(a)
        return None if info else (lu, pivots.tolist())

    def qr(self, a: Any, mode: str) -> Any:
        """Return Q and R by the library's own function; R alone in mode "r"."""
        found = self.module.linalg.qr(a, mode)
        return found if mode == "r" else tuple(found)

    def lstsq(self, a: Any, b: Any) -> tuple[Any, Any, Any, Any]:
        """Return the library's own solution, residuals, rank and singular values."""
        return tuple(self.module.linalg.lstsq(a, b, rcond=None))


class CupySolvers(NumpySolvers):
    """CuPy's functions, for its arrays on a GPU."""

    def __init__(self) -> None:
        self.module = sys.modules["cupy"]

    def device(self, x: Any) -> str:
        """Return the device as fmm.plan names it."""
        return f"cuda:{x.device.id}"

    def product_type(self, x: Any) -> str:
        """Return the element type of products; empty for another compute type or device than CuPy's default."""
        from fmm.arrays.cupy_library import COMPUTE_DEFAULT, current_device, get_compute_type

        has_other_mode = get_compute_type is not None and get_compute_type(x.dtype) > COMPUTE_DEFAULT
        return "" if has_other_mode or x.device.id != current_device() else str(x.dtype.name)

    def solve_block(self, a: Any, x: Any, lower: bool, unit_diagonal: bool) -> None:
        """Replace x by the solution of a y = x by cuBLAS's trsm."""
        from cupyx.scipy.linalg import solve_triangular

        if x.size:
            x[...] = solve_triangular(a, x, lower=lower, unit_diagonal=unit_diagonal, check_finite=False)

    def check_singular(self, diagonal: Any) -> None:
        """Do nothing: CuPy returns inf and NaN for singular matrices."""

    def cholesky_block(self, a: Any) -> Any:
        """Return the lower Cholesky factor of a block; raise `linalg_error` where the block has none."""
        from cupyx import errstate

        with errstate(linalg="raise"):
            return self.cholesky(a)

    def lu(self, a: Any) -> tuple[Any, list[int]] | None:
        """Return L and U in one matrix and the pivot rows; None for a singular matrix."""
        import warnings

        from cupyx.scipy.linalg import lu_factor

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a zero on the diagonal, which is examined here
            lu, pivots = lu_factor(a, check_finite=False)
        return None if bool((lu.diagonal() == 0).any()) else (lu, pivots.get().tolist())


class TorchSolvers(NumpySolvers):
    """torch's functions, for its tensors on the host or on a GPU."""

    right_side_axes = (2,)

    def __init__(self) -> None:
        self.module = sys.modules["torch"]
        self.linalg_error = self.module.linalg.LinAlgError

    def device(self, x: Any) -> str:
        """Return the device as fmm.plan names it."""
        return str(x.device)

    def product_type(self, x: Any) -> str:
        """Return the element type of products; empty where the program allows TF32, unlike torch.linalg."""
        from fmm.arrays.torch_library import float32_precision

        is_single = x.dtype in (self.module.float32, self.module.complex64)
        is_coarse = x.is_cuda and is_single and float32_precision() not in ("ieee", "none")
        return "" if is_coarse else str(x.dtype).removeprefix("torch.")

    def is_plain(self, *arrays: Any) -> bool:
        """Return True for plain tensors of one type and device, outside of traces, transforms, autocast and modes."""
        from fmm.arrays.torch_calls import is_plain_call

        return all(is_plain_call(arrays[0], x, None) and x.dtype == arrays[0].dtype for x in arrays)

    def needs_gradient(self, *arrays: Any) -> bool:
        """Return True if autograd records the call."""
        return self.module.is_grad_enabled() and any(x.requires_grad for x in arrays)

    def rank(self, rank: int, like: Any) -> Any:
        """Return a rank as torch.linalg.lstsq returns it with LAPACK's drivers that find none: an empty tensor."""
        return like.new_empty((0,), dtype=self.module.int64)

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """Return a row-major tensor of this shape, of the type and on the device of `like`."""
        return like.new_empty(shape)

    def identity(self, n: int, like: Any) -> Any:
        """Return the identity matrix."""
        return self.module.eye(n, dtype=like.dtype, device=like.device)

    def transpose(self, x: Any) -> Any:
        """Return a view of matrices with rows and columns exchanged."""
        return x.mT

    def conjugate(self, x: Any) -> Any:
        """Return the conjugate of a complex tensor; a real tensor unchanged."""
        return x.conj().resolve_conj() if x.is_complex() else x

    def write(self, out: Any, x: Any) -> Any:
        """Copy x into `out` and return `out`."""
        return out.copy_(x)

    def solve_block(self, a: Any, x: Any, lower: bool, unit_diagonal: bool) -> None:
        """Replace x by the solution of a y = x by torch.linalg.solve_triangular."""
        x.copy_(self.module.linalg.solve_triangular(a, x, upper=not lower, unitriangular=unit_diagonal))

    def check_singular(self, diagonal: Any) -> None:
        """Do nothing: torch returns inf and NaN for singular matrices."""

    def cholesky(self, a: Any, upper: bool = False) -> Any:
        """Return the Cholesky factor by torch.linalg.cholesky."""
        return self.module.linalg.cholesky(a, upper=upper)

    def lu(self, a: Any) -> tuple[Any, list[int]] | None:
        """Return L and U in one matrix and the pivot rows; None for a singular matrix."""
        lu, pivots, info = self.module.linalg.lu_factor_ex(a)
        return None if int(info) else (lu, [row - 1 for row in pivots.tolist()])

    def qr(self, a: Any, mode: str) -> Any:
        """Return Q and R by torch.linalg.qr; R alone in mode "r"."""
        q, r = self.module.linalg.qr(a, mode)
        return r if mode == "r" else (q, r)

    def lstsq(self, a: Any, b: Any) -> tuple[Any, Any, Any, Any]:
        """Return torch.linalg.lstsq's solution, residuals, rank and singular values."""
        return tuple(self.module.linalg.lstsq(a, b))


NUMPY_SOLVERS = NumpySolvers()


def solver_library(*arrays: Any) -> NumpySolvers:
    """Return the functions of the arrays' library; TypeError if the arrays are of several libraries."""
    check_dense("fmm.linalg", *arrays)
    kinds = {array_kind(x) for x in arrays}
    if len(kinds) > 1 or "other" in kinds:
        raise mixed_arrays_error(**{name: x for name, x in zip("ab", arrays, strict=False)})
    kind = kinds.pop()
    return NUMPY_SOLVERS if kind == "host" else CupySolvers() if kind == "cupy" else TorchSolvers()


@cache
def has_scipy() -> bool:
    """Return True if SciPy is installed: without SciPy, numpy.linalg answers alone."""
    return find_spec("scipy") is not None


def scipy_linalg(function: str) -> Any:
    """Return scipy.linalg; ImportError with the command that installs SciPy, where SciPy is missing."""
    try:
        import scipy.linalg
    except ImportError as error:
        raise ImportError(f"fmm.linalg.{function} of NumPy arrays needs SciPy: pip install scipy") from error
    return scipy.linalg
