"""The functions of SciPy, CuPy and torch that solvers call for small blocks, and for matrices without a predicted gain.

`solve_block` and `cholesky_block` take single matrices; most other functions take stacks of matrices too.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from fmm.arrays.detect import array_kind, can_cache_array_kind, check_dense, mixed_arrays_error
from fmm.arrays.numpy_library import NUMPY
from fmm.linalg import panel_launches
from fmm.linalg.panel_launches import (
    CPP_NUMBERS,
    INVERTED_SIDE,
    MAX_ROWS_PER_THREAD,
    ROW_CAPACITY,
    BlockTriangularMatrix,
    PanelShape,
)

PANEL_WIDTH = 256  # columns of a panel of an LU factorization
SINGLE_TYPES = ("float32", "complex64")
SOLVER_TYPES = ("float32", "float64", "complex64", "complex128")
# Smallest number of multiprocessors of a GPU on which a cluster of thread blocks can hold a panel. A partition of a GPU
# (MIG) has fewer multiprocessors and does not use the kernel for panels.
MIN_MULTIPROCESSORS = 100


class InvertedBlock(NamedTuple):
    """The blocks to invert on the diagonal of a triangular matrix.

    The fields are the last five fields of panel_launches.BlockTriangularMatrix.
    """

    stacked_side: int
    side: int
    known_side: int
    is_lower: bool
    is_unit: bool


class LuFactors(NamedTuple):
    """L and U in one matrix, and the pivots: row i was exchanged with row pivots[i], counted from 0."""

    lu: Any
    pivots: Any


class NumpySolvers:
    """NumPy's and SciPy's functions, for arrays on the host."""

    linalg_error: type[Exception] = np.linalg.LinAlgError
    module: Any = np
    right_side_axes: tuple[int, ...] = (1, 2)  # numbers of axes of the right-hand sides that the library's lstsq takes
    adapter: Any = NUMPY  # the adapter of fmm.arrays
    plain_class: type = np.ndarray
    first_pivot = 0  # the number of the first row among the pivots of the library's LU factors

    def device(self, x: Any) -> str:
        """Return the name of the array's device for fmm.plan, such as "cpu" or "cuda:0"."""
        return "cpu"

    def type_name(self, x: Any) -> str:
        """Return the name of the array's element type, such as "float64"."""
        return str(x.dtype).removeprefix("torch.")

    def product_type(self, x: Any) -> str:
        """Return the element type of the products of a solver.

        Return an empty text if the library's own functions must compute the call.
        """
        return str(x.dtype.name) if has_scipy() else ""

    def is_plain(self, *arrays: Any) -> bool:
        """Return True unless a trace, a transform or a mode requires that the library's own function runs."""
        return True

    def needs_gradient(self, *arrays: Any) -> bool:
        """Return True if gradients must be recorded for the result; only torch records gradients."""
        return False

    def are_solvers_measured_for(self, x: Any) -> bool:
        """Return True if solvers were measured for the array's element type on a GPU like the array's GPU."""
        return False

    def rank(self, rank: int, like: Any) -> Any:
        """Return a matrix rank in the form in which the library's lstsq returns a rank."""
        return rank

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """Return an uninitialised row-major array of this shape, with the type and on the device of `like`."""
        return self.module.empty(shape, like.dtype)

    def zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        """Return a row-major array of zeros, with the type and on the device of `like`."""
        return self.adapter.new_zeros(shape, like)

    def identity(self, n: int, like: Any) -> Any:
        """Return the identity matrix of n rows, with the type and on the device of `like`."""
        return self.module.eye(n, dtype=like.dtype)

    def transpose(self, x: Any) -> Any:
        """Return a transposed view of a matrix or a stack of matrices."""
        return self.adapter.transposed_view(x)

    def adjoint(self, x: Any) -> Any:
        """Return the conjugate transpose: a copy of a complex array, a view of a real array."""
        return self.conjugate(self.transpose(x))

    def conjugate(self, x: Any) -> Any:
        """Return a copy of a complex array with conjugated entries; return a real array unchanged."""
        return self.adapter.conjugated_copy(x) if self.is_complex(x) else x

    def is_complex(self, x: Any) -> bool:
        """Return True for a complex array."""
        return bool(x.dtype.kind == "c")

    def overwrite(self, out: Any, x: Any) -> Any:
        """Copy x into `out` and return `out`."""
        self.adapter.copy_into(x, out)
        return out

    def strided_view(self, x: Any, shape: tuple[int, ...], steps: tuple[int, ...]) -> Any:
        """Return a view that begins at the first entry of x, with this shape and these strides in elements."""
        strides = tuple(step * x.itemsize for step in steps)
        return self.module.lib.stride_tricks.as_strided(x, shape, strides)

    def element_steps(self, x: Any) -> tuple[int, ...]:
        """Return the strides of x in elements."""
        return tuple(step // x.itemsize for step in x.strides)

    def solve_block(self, a: Any, x: Any, lower: bool, unit_diagonal: bool) -> None:
        """Replace x by the solution y of a y = x, by BLAS's trsm, which reads only one triangle of a."""
        if x.size == 0:
            return
        blas = scipy_linalg("solve_triangular").blas.get_blas_funcs("trsm", (a, x))
        # BLAS reads column-major matrices, so a row-major matrix is passed as its transpose
        transposed = int(abs(a.strides[0]) > abs(a.strides[1]))
        stored, stored_lower = (a.T, not lower) if transposed else (a, lower)
        flags = {"lower": stored_lower, "diag": unit_diagonal}
        if abs(x.strides[0]) > abs(x.strides[1]):
            x[...] = blas(1, stored, x.T, side=1, trans_a=1 - transposed, **flags).T
        else:
            x[...] = blas(1, stored, x, side=0, trans_a=transposed, **flags)

    def check_singular(self, diagonal: Any) -> None:
        """Raise SciPy's exception if the diagonal of a triangular matrix has a zero."""
        zeros = np.nonzero(diagonal == 0)[0]
        if zeros.size:
            raise np.linalg.LinAlgError(f"singular matrix: resolution failed at diagonal {zeros[0]}")

    def cholesky(self, a: Any, upper: bool = False) -> Any:
        """Return the Cholesky factor by the library's own function; only one triangle of a is read."""
        factor = self.module.linalg.cholesky
        return self.adjoint(factor(self.adjoint(a))) if upper and a.ndim > 1 else factor(a)

    def cholesky_block(self, a: Any) -> tuple[Any, Any]:
        """Return (lower Cholesky factor, None) of a block; raise `linalg_error` if the block has no factor.

        TorchSolvers raises no error: instead of None, it returns a tensor of one number, which is not 0 if the block
        has no factor.
        """
        return self.cholesky(a), None

    def inv(self, a: Any) -> Any:
        """Return the inverse by the library's own function."""
        return self.module.linalg.inv(a)

    def subtract_product_by_library(self, a: Any, b: Any, c: Any) -> None:
        """Replace c by c - a b, by the library's own functions."""
        c -= self.module.matmul(a, b)

    # ---- LU factors

    def panel_width(self, a: Any) -> int:
        """Return the number of columns of a panel; 0 if `factor_panel` cannot factor panels of this matrix."""
        return PANEL_WIDTH if has_scipy() else 0

    def factor_panel(self, a: Any, pivots: Any) -> None:
        """Factor a panel in place by LAPACK's getrf, and write the pivots, counted from the panel's first row."""
        getrf = scipy_linalg("lu_factor").get_lapack_funcs("getrf", (a,))
        a[...], pivots[...], _ = getrf(a)

    def exchange_rows(self, x: Any, pivots: Any, origin: int) -> None:
        """Exchange row i of x with row pivots[i] - origin, for each i in turn."""
        targets, sources = self.moved_row_indices(pivots, origin)
        x[targets] = x[sources]

    def moved_row_indices(self, pivots: Any, origin: int) -> tuple[Any, Any]:
        """Return the new and the old places of the rows that the exchanges by `pivots` move, as two arrays."""
        source: dict[int, int] = {}
        for i, pivot in enumerate((pivots - origin).tolist()):
            source[i], source[pivot] = source.get(pivot, pivot), source.get(i, i)
        return np.array(list(source), np.int64), np.array(list(source.values()), np.int64)

    def empty_pivots(self, count: int, like: Any) -> Any:
        """Return an uninitialised int32 array for `count` pivots."""
        return self.module.empty(count, np.int32)

    def row_numbers(self, n: int, like: Any) -> Any:
        """Return the integers from 0 to n - 1 as an int64 array on the device of `like`."""
        return self.module.arange(n, dtype=np.int64)

    def reorder_rows(self, x: Any, order: Any) -> Any:
        """Return the matrices of a stack with their rows in the order `order`, which has a row for each matrix."""
        return self.module.take_along_axis(x, order[..., None], -2)

    def lu_factor(self, a: Any) -> tuple[Any, Any]:
        """Return L and U in one matrix, and the pivots, by the library's own function."""
        return scipy_linalg("lu_factor").lu_factor(a, check_finite=False)  # type: ignore[no-any-return]

    def solve(self, a: Any, b: Any, assume_a: str) -> Any:
        """Return the solutions of a x = b by the library's own function; b has two dimensions at least.

        For "pos", only the lower triangle of a is read.
        """
        if assume_a != "gen" and has_scipy() and a.ndim == b.ndim == 2 and a.size and b.size:
            lower = assume_a == "pos"
            return scipy_linalg("solve").solve(a, b, assume_a=assume_a, lower=lower, check_finite=False)
        if assume_a == "pos":
            factor = self.cholesky(a)
            return self.module.linalg.solve(self.adjoint(factor), self.module.linalg.solve(factor, b))
        return self.module.linalg.solve(a, b)

    def det(self, a: Any) -> Any:
        """Return the determinants by the library's own function."""
        return self.module.linalg.det(a)

    def slogdet(self, a: Any) -> Any:
        """Return the signs and the logarithms of the determinants by the library's own function."""
        return self.module.linalg.slogdet(a)

    def invert_blocks(self, a: Any, stacked: Any, block: InvertedBlock) -> bool:
        """Write the inverses of the blocks on the diagonal of `a` to `stacked`.

        Return False and write nothing if no kernel inverts blocks of this array. `stacked` is a stack of row-major
        matrices with `block.stacked_side` rows, or a submatrix on the diagonal of one matrix in this stack.
        """
        return False

    def lu(self, a: Any) -> Any:
        """Return the LU factors by the library's own function, with pivots counted from 0; None if a is singular."""
        getrf = scipy_linalg("solve").get_lapack_funcs("getrf", (a,))
        lu, pivots, info = getrf(a)
        return None if info else LuFactors(lu, pivots)

    def cast(self, x: Any, dtype: str) -> Any:
        """Return the array converted to another element type."""
        return x.astype(dtype, copy=False)

    def element_as_float(self, x: Any) -> float:
        """Return the element of an array with one element, as a float."""
        return float(x)

    def to_host(self, x: Any) -> Any:
        """Return the array as a NumPy array."""
        return x

    def from_host(self, x: Any, like: Any) -> Any:
        """Return a NumPy array as an array of the library, on the device of `like`."""
        return x

    def qr(self, a: Any, mode: str) -> Any:
        """Return the QR factors by the library's own function: Q and R, or R alone in mode "r"."""
        found = self.module.linalg.qr(a, mode)
        return found if mode == "r" else tuple(found)

    def lstsq(self, a: Any, b: Any) -> tuple[Any, Any, Any, Any]:
        """Return the library's own solution, residuals, rank and singular values."""
        return tuple(self.module.linalg.lstsq(a, b, rcond=None))


class DeviceSolvers(NumpySolvers):
    """The functions that CupySolvers and TorchSolvers share: they launch fmm's kernels on a GPU."""

    def launch(self, x: Any, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function of fmm.linalg.panel_launches on the array's device and the library's current stream."""
        device = self.adapter.device_number(x)
        stream, context = self.adapter.current_stream(device)
        with context or nullcontext():
            function(*arguments, device, stream)

    def solver_kernel_dtype(self, x: Any) -> str:
        """Return the element type for the kernels of solvers; an empty text if no kernel supports the array."""
        dtype = self.type_name(x)
        return dtype if dtype in CPP_NUMBERS and self.device(x).startswith("cuda") and has_cupy() else ""

    def are_solvers_measured_for(self, x: Any) -> bool:
        """Return True for float32 and float64 on a GPU of compute capability 9.0 that is not divided by MIG."""
        if not self.solver_kernel_dtype(x):
            return False
        from fmm.kernels.cuda.launch.device_facts import cuda_device_chip

        chip = cuda_device_chip(self.adapter.device_number(x))
        return chip.version // 10 == 9 and chip.multiprocessors >= MIN_MULTIPROCESSORS

    def panel_width(self, a: Any) -> int:
        """Return the number of columns of a panel; 0 if `factor_panel` cannot factor panels of this matrix."""
        return (
            PANEL_WIDTH if self.are_solvers_measured_for(a) and a.shape[-2] <= MAX_ROWS_PER_THREAD * ROW_CAPACITY else 0
        )

    def factor_panel(self, a: Any, pivots: Any) -> None:
        """Factor a panel in place, and write the pivots, counted from the panel's first row."""
        (rows, columns), (down, across) = a.shape, self.element_steps(a)
        shape = PanelShape(rows, columns, down, across, self.solver_kernel_dtype(a))
        pointer = self.adapter.data_pointer
        self.launch(a, panel_launches.factor_panel, shape, pointer(a), pointer(pivots))

    def moved_row_indices(self, pivots: Any, origin: int) -> tuple[Any, Any]:
        """Return the new and the old places of the rows that the exchanges by `pivots` move, as two arrays.

        The pivots must be contiguous: the kernel reads them without strides.
        """
        count, pointer = len(pivots), self.adapter.data_pointer
        rows = self.empty_row_numbers(4 * count, pivots)
        self.launch(pivots, panel_launches.list_moved_row_indices, count, origin, pointer(pivots), pointer(rows))
        return rows[: 2 * count], rows[2 * count :]

    def empty_row_numbers(self, count: int, like: Any) -> Any:
        """Return an uninitialised int64 array for `count` row numbers."""
        return self.module.empty(count, np.int64)

    def invert_blocks(self, a: Any, stacked: Any, block: InvertedBlock) -> bool:
        """Write the inverses of the blocks on the diagonal of a; return False if no kernel inverts these blocks."""
        if not (dtype := self.solver_kernel_dtype(a)) or block.side % INVERTED_SIDE:
            return False
        down, across = self.element_steps(a)
        form = BlockTriangularMatrix(a.shape[0], down, across, dtype, *block)
        scratch, pointer = self.empty((panel_launches.scratch_entry_count(form),), a), self.adapter.data_pointer
        self.launch(a, panel_launches.invert_blocks, form, pointer(a), pointer(stacked), pointer(scratch))
        return True


class CupySolvers(DeviceSolvers):
    """CuPy's functions, for its arrays on a GPU."""

    def __init__(self) -> None:
        from fmm.arrays.cupy_library import CUPY

        self.module, self.adapter = sys.modules["cupy"], CUPY
        self.plain_class = self.module.ndarray

    def device(self, x: Any) -> str:
        """Return the name of the array's device for fmm.plan, such as "cpu" or "cuda:0"."""
        return f"cuda:{x.device.id}"

    def product_type(self, x: Any) -> str:
        """Return the element type of the products of a solver.

        Return an empty text if CuPy's compute type is not the default, or if the array is not on the current device.
        """
        from fmm.arrays.cupy_library import COMPUTE_DEFAULT, current_device, get_compute_type

        has_other_mode = get_compute_type is not None and get_compute_type(x.dtype) > COMPUTE_DEFAULT
        return "" if has_other_mode or x.device.id != current_device() else str(x.dtype.name)

    def solve_block(self, a: Any, x: Any, lower: bool, unit_diagonal: bool) -> None:
        """Replace x by the solution y of a y = x, by cuBLAS's trsm."""
        from cupyx.scipy.linalg import solve_triangular

        if x.size:
            x[...] = solve_triangular(a, x, lower=lower, unit_diagonal=unit_diagonal, check_finite=False)

    def check_singular(self, diagonal: Any) -> None:
        """Do nothing: CuPy returns inf and NaN for singular matrices."""

    def cholesky_block(self, a: Any) -> tuple[Any, Any]:
        """Return (lower Cholesky factor, None) of a block; raise `linalg_error` if the block has no factor."""
        from cupyx import errstate

        with errstate(linalg="raise"):
            return self.cholesky(a), None

    def lu_factor(self, a: Any) -> tuple[Any, Any]:
        """Return L and U in one matrix, and the pivots, by CuPy's own function."""
        from cupyx.scipy.linalg import lu_factor

        return lu_factor(a, check_finite=False)  # type: ignore[no-any-return]

    def solve(self, a: Any, b: Any, assume_a: str) -> Any:
        """Return the solutions of a x = b by CuPy's own function."""
        return self.module.linalg.solve(a, b)

    def lu(self, a: Any) -> Any:
        """Return the LU factors by the library's own function, with pivots counted from 0; None if a is singular."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of a zero on the diagonal, which is tested below
            lu, pivots = self.lu_factor(a)
        return None if bool((lu.diagonal() == 0).any()) else LuFactors(lu, pivots)

    def to_host(self, x: Any) -> Any:
        """Return the array as a NumPy array."""
        return x.get()

    def from_host(self, x: Any, like: Any) -> Any:
        """Return a NumPy array as an array on the current device."""
        return self.module.asarray(x)


class TorchSolvers(DeviceSolvers):
    """torch's functions, for its tensors on the host or on a GPU."""

    right_side_axes = (2,)
    first_pivot = 1

    def __init__(self) -> None:
        from fmm.arrays.torch_library import TORCH

        self.module, self.adapter = sys.modules["torch"], TORCH
        self.linalg_error = self.module.linalg.LinAlgError
        self.plain_class = self.module.Tensor

    def device(self, x: Any) -> str:
        """Return the name of the array's device for fmm.plan, such as "cpu" or "cuda:0"."""
        return f"cuda:{x.get_device()}" if x.is_cuda else "cpu"

    def product_type(self, x: Any) -> str:
        """Return the element type of the products of a solver.

        Return an empty text if the program has set a lower precision of float32 products, for example TF32, because
        torch.linalg does not use this precision.
        """
        from fmm.arrays.torch_library import TYPE_NAMES, float32_precision

        dtype = TYPE_NAMES.get(x.dtype, "")
        is_coarse = dtype in SINGLE_TYPES and x.is_cuda and float32_precision() not in ("ieee", "none")
        return "" if is_coarse else dtype

    def is_plain(self, *arrays: Any) -> bool:
        """Return True for plain tensors of one type on one device, unless a trace, transform or mode is active."""
        from fmm.arrays.torch_calls import is_plain_call

        return all(is_plain_call(arrays[0], x, None) and x.dtype == arrays[0].dtype for x in arrays)

    def needs_gradient(self, *arrays: Any) -> bool:
        """Return True if autograd records the call."""
        return self.module.is_grad_enabled() and any(x.requires_grad for x in arrays)

    def rank(self, rank: int, like: Any) -> Any:
        """Return an empty tensor, as torch.linalg.lstsq does with a driver that computes no rank."""
        return like.new_empty((0,), dtype=self.module.int64)

    def empty(self, shape: tuple[int, ...], like: Any) -> Any:
        """Return an uninitialised row-major tensor of this shape, with the type and on the device of `like`."""
        return like.new_empty(shape)

    def identity(self, n: int, like: Any) -> Any:
        """Return the identity matrix of n rows, with the type and on the device of `like`."""
        return self.module.eye(n, dtype=like.dtype, device=like.device)

    def is_complex(self, x: Any) -> bool:
        """Return True for a complex tensor."""
        return bool(x.is_complex())

    def strided_view(self, x: Any, shape: tuple[int, ...], steps: tuple[int, ...]) -> Any:
        """Return a view that begins at the first entry of x, with this shape and these strides in elements."""
        return x.as_strided(shape, steps, x.storage_offset())

    def element_steps(self, x: Any) -> tuple[int, ...]:
        """Return the strides of x in elements."""
        return tuple(x.stride())

    def solve_block(self, a: Any, x: Any, lower: bool, unit_diagonal: bool) -> None:
        """Replace x by the solution y of a y = x, by torch.linalg.solve_triangular."""
        x.copy_(self.module.linalg.solve_triangular(a, x, upper=not lower, unitriangular=unit_diagonal))

    def subtract_product_by_library(self, a: Any, b: Any, c: Any) -> None:
        """Replace c by c - a b, by torch's own function."""
        c.addmm_(a, b, alpha=-1)

    def check_singular(self, diagonal: Any) -> None:
        """Do nothing: torch returns inf and NaN for singular matrices."""

    def cholesky(self, a: Any, upper: bool = False) -> Any:
        """Return the Cholesky factor by torch.linalg.cholesky."""
        return self.module.linalg.cholesky(a, upper=upper)

    def cholesky_block(self, a: Any) -> tuple[Any, Any]:
        """Return the lower Cholesky factor of a block, and a number that is not 0 if the block has no factor."""
        return tuple(self.module.linalg.cholesky_ex(a))

    # ---- LU factors

    def panel_width(self, a: Any) -> int:
        """Return the number of columns of a panel; 0 if `factor_panel` cannot factor panels of this matrix."""
        return super().panel_width(a) if a.is_cuda else PANEL_WIDTH

    def factor_panel(self, a: Any, pivots: Any) -> None:
        """Factor a panel in place, and write the pivots, counted from the panel's first row."""
        if a.is_cuda:
            super().factor_panel(a, pivots)
            return
        lu, rows, _ = self.module.linalg.lu_factor_ex(a)
        a.copy_(lu)
        pivots.copy_(rows - 1)

    def exchange_rows(self, x: Any, pivots: Any, origin: int) -> None:
        """Exchange row i of x with row pivots[i] - origin, for each i in turn."""
        targets, sources = self.moved_row_indices(pivots, origin)
        x.index_copy_(0, targets, x.index_select(0, sources))

    def moved_row_indices(self, pivots: Any, origin: int) -> tuple[Any, Any]:
        """Return the new and the old places of the rows that the exchanges by `pivots` move, as two arrays."""
        if pivots.is_cuda and has_cupy():
            return super().moved_row_indices(pivots, origin)
        targets, sources = NUMPY_SOLVERS.moved_row_indices(self.to_host(pivots), origin)
        return self.from_host(targets, pivots), self.from_host(sources, pivots)

    def row_numbers(self, n: int, like: Any) -> Any:
        """Return the integers from 0 to n - 1 as an int64 array on the device of `like`."""
        return self.module.arange(n, device=like.device)

    def reorder_rows(self, x: Any, order: Any) -> Any:
        """Return the matrices of a stack with their rows in the order `order`, which has a row for each matrix."""
        return self.module.take_along_dim(x, order[..., None], -2)

    def empty_row_numbers(self, count: int, like: Any) -> Any:
        """Return an uninitialised int64 tensor for `count` row numbers."""
        return self.module.empty(count, dtype=self.module.int64, device=like.device)

    def empty_pivots(self, count: int, like: Any) -> Any:
        """Return an uninitialised int32 tensor for `count` pivots."""
        return self.module.empty(count, dtype=self.module.int32, device=like.device)

    def lu_factor(self, a: Any) -> tuple[Any, Any]:
        """Return L and U in one matrix, and the pivots, by torch.linalg.lu_factor."""
        return tuple(self.module.linalg.lu_factor(a))

    def lu_solve(self, factors: LuFactors, b: Any, trans: str) -> Any:
        """Return the solutions of op(a) x = b by torch.linalg.lu_solve, from factors whose pivots count from 1."""
        if trans == "T":  # the conjugate of op(a) x = b has the adjoint of a
            b = b.conj()
        x = self.module.linalg.lu_solve(*factors, b, adjoint=trans != "N")
        return x.conj() if trans == "T" else x

    def solve(self, a: Any, b: Any, assume_a: str) -> Any:
        """Return the solutions of a x = b by torch.linalg.solve; b has two dimensions at least."""
        if a.ndim == b.ndim == 2:
            return self.module.linalg.solve(a, b)
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return self.module.linalg.solve(a, b.expand(*batch, *b.shape[-2:]))

    def lu(self, a: Any) -> Any:
        """Return the LU factors by the library's own function, with pivots counted from 0; None if a is singular."""
        lu, pivots, info = self.module.linalg.lu_factor_ex(a)
        return None if int(info) else LuFactors(lu, pivots - 1)

    def cast(self, x: Any, dtype: str) -> Any:
        """Return the tensor converted to another element type."""
        return x.to(getattr(self.module, dtype))

    def to_host(self, x: Any) -> Any:
        """Return the array as a NumPy array."""
        return x.cpu().numpy()

    def from_host(self, x: Any, like: Any) -> Any:
        """Return a NumPy array as a tensor on the device of `like`."""
        return self.module.from_numpy(x).to(like.device)

    def qr(self, a: Any, mode: str) -> Any:
        """Return the QR factors by torch.linalg.qr: Q and R, or R alone in mode "r"."""
        q, r = self.module.linalg.qr(a, mode)
        return r if mode == "r" else (q, r)

    def lstsq(self, a: Any, b: Any) -> tuple[Any, Any, Any, Any]:
        """Return torch.linalg.lstsq's solution, residuals, rank and singular values."""
        return tuple(self.module.linalg.lstsq(a, b))


NUMPY_SOLVERS = NumpySolvers()


# The library's functions for each of the classes numpy.ndarray, cupy.ndarray and torch.Tensor, added at the first call
# with the class. `solver_library` examines an array only if the array's class is not in this table.
_libraries_by_class: dict[type, NumpySolvers] = {np.ndarray: NUMPY_SOLVERS}


def solver_library(*arrays: Any) -> NumpySolvers:
    """Return the functions of the arrays' library; raise TypeError for arrays of different libraries."""
    cls = type(arrays[0])
    known = _libraries_by_class.get(cls)
    if known is not None and (len(arrays) == 1 or all(type(x) is cls for x in arrays[1:])):
        return known
    check_dense("fmm.linalg", *arrays)
    kinds = {array_kind(x) for x in arrays}
    if len(kinds) > 1 or "other" in kinds:
        raise mixed_arrays_error(**{name: x for name, x in zip("ab", arrays, strict=False)})
    kind = kinds.pop()
    if kind == "host":
        return NUMPY_SOLVERS
    library = cupy_solvers() if kind == "cupy" else torch_solvers()
    if cls is library.plain_class and can_cache_array_kind(kind):
        _libraries_by_class[cls] = library
    return library


@cache
def cupy_solvers() -> CupySolvers:
    """Return the functions of CuPy."""
    return CupySolvers()


@cache
def torch_solvers() -> TorchSolvers:
    """Return the functions of torch."""
    return TorchSolvers()


@cache
def has_cupy() -> bool:
    """Return True if CuPy is installed, through which fmm launches its kernels."""
    return find_spec("cupy") is not None


@cache
def has_scipy() -> bool:
    """Return True if SciPy is installed; without SciPy, numpy.linalg computes all solvers of NumPy arrays."""
    return find_spec("scipy") is not None


def scipy_linalg(function: str) -> Any:
    """Return scipy.linalg; if SciPy is missing, raise ImportError with the command that installs it."""
    try:
        import scipy.linalg
    except ImportError as error:
        raise ImportError(f"fmm.linalg.{function} of NumPy arrays needs SciPy: pip install scipy") from error
    return scipy.linalg
