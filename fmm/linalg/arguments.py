"""Checks of the solvers' arguments, and their results in `out`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fmm.linalg.solver_library import NUMPY_SOLVERS, NumpySolvers, TorchSolvers, solver_library
from fmm.request import check_error_growth

SOLVER_DTYPES = tuple(np.dtype(name) for name in ("float32", "float64", "complex64", "complex128"))
# The types in which scipy.linalg computes with arrays of other types, by the types' characters in NumPy.
SCIPY_DTYPES = {char: np.dtype(name) for char, name in (("e", "f"), ("g", "d"), ("G", "D"), ("O", "d"))}
TRANS_CODES = {0: "N", 1: "T", 2: "C", "N": "N", "T": "T", "C": "C"}


def common_arrays(*arrays: Any, as_in_scipy: bool = False) -> tuple[NumpySolvers, list[Any]]:
    """Return the functions of the arrays' library, and the arrays in one element type.

    Lists are converted to NumPy arrays. Integers count as float64, as in numpy.linalg; if `as_in_scipy` is True,
    integers beside other types are promoted as by numpy.result_type, and types that LAPACK does not compute are
    converted, as in scipy.linalg. Tensors of torch are not converted.
    """
    library = solver_library(*arrays)
    if isinstance(library, TorchSolvers):
        return library, list(arrays)
    first = getattr(arrays[0], "dtype", None)
    plain = library.plain_class
    if first in SOLVER_DTYPES and all(type(x) is plain and getattr(x, "dtype", None) == first for x in arrays):
        return library, list(arrays)
    converted: list[Any] = [np.asarray(x) for x in arrays] if library is NUMPY_SOLVERS else list(arrays)
    dtypes = [x.dtype for x in converted]
    if as_in_scipy and any(dtype.kind not in "biu" for dtype in dtypes):
        dtype = np.result_type(*(SCIPY_DTYPES.get(dtype.char, dtype) for dtype in dtypes))
    else:
        dtype = np.result_type(*(np.float64 if dtype.kind in "biu" else dtype for dtype in dtypes))
    return library, [x.astype(dtype, copy=False) for x in converted]


def check_limit(max_error_growth: Any) -> None:
    """Raise ValueError unless the limit on the error growth is None or a number above 0, as fmm.matmul does."""
    if max_error_growth is not None:
        check_error_growth(max_error_growth)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise ValueError unless the value of the argument `name` is one of the choices."""
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}; valid: {', '.join(choices)}")


def check_square(a: Any) -> None:
    """Raise ValueError unless the last two dimensions of an array are equal."""
    if not is_square(a):
        raise ValueError(f"expected a square matrix or a stack of square matrices, not the shape {tuple(a.shape)}")


def is_square(a: Any) -> bool:
    """Return True for a square matrix, and for a stack of square matrices."""
    return bool(a.ndim >= 2 and a.shape[-1] == a.shape[-2])


def check_right_sides(a: Any, b: Any, axis: int = -2) -> None:
    """Raise ValueError unless b is a matrix or a stack whose dimension `axis` has the length of a's rows."""
    if b.ndim < 2 or b.shape[axis] != a.shape[-1]:
        raise ValueError(f"shapes of a {tuple(a.shape)} and b {tuple(b.shape)} are incompatible")


def checked_trans_option(trans: Any) -> str:
    """Return "N", "T" or "C" for a value of SciPy's parameter `trans`; raise ValueError for any other value."""
    # isinstance gets a tuple, since `int | str` would create a union of types in each call
    if not isinstance(trans, (int, np.integer, str)) or trans not in TRANS_CODES:
        raise ValueError(f"unknown trans {trans!r}; valid: 0, 1, 2, 'N', 'T', 'C'")
    return TRANS_CODES[trans]


def write_result(library: NumpySolvers, out: Any, x: Any) -> Any:
    """Return x, or `out` after x was copied into `out`.

    Raise ValueError if the shape or the element type of `out` is not that of x.
    """
    if out is None:
        return x
    if type(out) is not type(x) or tuple(out.shape) != tuple(x.shape) or out.dtype != x.dtype:
        found = f"{tuple(getattr(out, 'shape', ()))} of {getattr(out, 'dtype', type(out).__name__)}"
        raise ValueError(f"out is {found}, the result is {tuple(x.shape)} of {x.dtype}")
    return library.overwrite(out, x)
