"""Errors of solvers on difficult matrices, and times of tall ones: `python -m benchmarks solver_errors [--device 0]`.

Each row has the errors of fmm.linalg and of the library's own function on one matrix of a family: CuPy's (cuSOLVER's)
on a GPU, LAPACK's on a CPU. For QR factors of tall normal matrices, rows on a GPU also have times in shuffled rounds
beside torch.linalg. All rows go to results/<device>/solver_errors.json.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import fmm
from benchmarks.harness import (
    Call,
    Machine,
    Row,
    benchmark_parser,
    free_gpu_memory,
    has_failures,
    machine_of,
    paired_samples,
    paired_speedup,
    recorded_failure,
    rounded_samples,
    run_cases,
)
from benchmarks.papers.matrices import GRADED_RATIO, kaporin_matrices

Array = Any  # of NumPy or CuPy
TYPES = ("float32", "float64")
GPU_SIDE, HOST_SIDE = 8192, 512
TALL_ASPECT = 8  # rows over columns of the matrices for QR factors
TALL_SHAPES = ((16384, 1024), (32768, 2048), (65536, 4096))
ROUNDS, SAMPLE_SECONDS = 5, 0.02
NEARLY_EQUAL = 1e-5  # distance of the columns of a nearly singular matrix
DIAGONAL_SHIFT = 64  # multiple of eps that makes the positive definite matrices positive definite in their type

# ---- the families


def square_matrix(xp: Any, family: str, n: int, dtype: str) -> Array:
    """Return the matrix of a family."""
    rng = xp.random.default_rng(n)
    normal = rng.standard_normal((n, n))
    if family == "graded":
        normal *= (GRADED_RATIO ** (xp.arange(n) / max(n - 1, 1)))[:, None]
    elif family == "near singular":
        normal[:, n // 2 :] = normal[:, : n - n // 2] + NEARLY_EQUAL * normal[:, n // 2 :]
    elif family == "Hilbert-like":
        index = xp.arange(n, dtype="float64")
        normal = 1 / (index[:, None] + index[None, :] + 1)
    elif family == "Kaporin":
        normal = kaporin_matrices(xp, n, "float64")[0]
    return normal.astype(dtype)


FAMILIES = ("normal", "Kaporin", "graded", "Hilbert-like", "near singular")


def positive_matrix(xp: Any, family: str, n: int, dtype: str) -> Array:
    """Return A A^T / ||A A^T||, with a small multiple of the identity added."""
    a = square_matrix(xp, family, n, "float64")
    product = a @ a.T
    product /= xp.linalg.norm(product)
    product.reshape(-1)[:: n + 1] += DIAGONAL_SHIFT * float(xp.finfo(dtype).eps)
    return product.astype(dtype)


# ---- the errors


def norm_ratio(xp: Any, residual: Array, *factors: Array) -> float:
    """Return the norm of a residual over the product of the factors' norms."""
    scale = 1.0
    for x in factors:
        scale *= float(xp.linalg.norm(x.astype("float64")))
    return float(xp.linalg.norm(residual)) / scale


def product(a: Array, b: Array) -> Array:
    """Return the product in float64."""
    return a.astype("float64") @ b.astype("float64")


def cholesky_errors(xp: Any, solver: Callable[..., Any], family: str, n: int, dtype: str) -> dict[str, float]:
    """Return the backward error of a Cholesky factor."""
    matrix = positive_matrix(xp, family, n, dtype)
    factor = solver(matrix)
    return {"backward": norm_ratio(xp, product(factor, factor.T) - matrix, matrix)}


def triangular_errors(xp: Any, solver: Callable[..., Any], family: str, n: int, dtype: str) -> dict[str, float]:
    """Return the backward error of a triangular system whose matrix is a Cholesky factor."""
    matrix = xp.linalg.cholesky(positive_matrix(xp, family, n, dtype))
    right = square_matrix(xp, "normal", n, dtype)
    x = solver(matrix, right)
    return {"backward": norm_ratio(xp, product(matrix, x) - right, matrix, x)}


def inverse_errors(xp: Any, solver: Callable[..., Any], family: str, n: int, dtype: str) -> dict[str, float]:
    """Return the residual of an inverse."""
    matrix = positive_matrix(xp, family, n, dtype)
    inverse = solver(matrix)
    residual = product(matrix, inverse)
    residual.reshape(-1)[:: n + 1] -= 1
    return {"residual": norm_ratio(xp, residual, matrix, inverse)}


def qr_errors(xp: Any, solver: Callable[..., Any], family: str, n: int, dtype: str) -> dict[str, float]:
    """Return the backward error of QR factors of a tall matrix, and ||Q^T Q - I|| / sqrt(columns)."""
    columns = n // TALL_ASPECT
    matrix = xp.ascontiguousarray(square_matrix(xp, family, n, dtype)[:, :columns])
    q, r = solver(matrix)
    gram = product(q.T, q)
    gram.reshape(-1)[:: columns + 1] -= 1
    orthogonality = float(xp.linalg.norm(gram)) / columns**0.5
    return {"backward": norm_ratio(xp, product(q, r) - matrix, matrix), "orthogonality": orthogonality}


ERRORS = {"cholesky": cholesky_errors, "solve_triangular": triangular_errors, "inv": inverse_errors, "qr": qr_errors}


def own_solver(function: str) -> Callable[..., Any]:
    """Return fmm's function with the options of the matrices here."""
    options: dict[str, dict[str, Any]] = {"solve_triangular": {"lower": True}, "inv": {"assume_a": "pos"}}
    return partial(getattr(fmm.linalg, function), **options.get(function, {}))


def vendor_solver(xp: Any, function: str) -> Callable[..., Any]:
    """Return the library's own function."""
    if function != "solve_triangular":
        return getattr(xp.linalg, function)  # type: ignore[no-any-return]
    if xp.__name__ == "numpy":
        from scipy.linalg import solve_triangular
    else:
        from cupyx.scipy.linalg import solve_triangular
    return partial(solve_triangular, lower=True)


def family_errors(xp: Any, function: str, family: str, n: int, dtype: str) -> dict[str, dict[str, float]]:
    """Return the errors of fmm and of the library by the name of the error."""
    measure = ERRORS[function]
    own = measure(xp, own_solver(function), family, n, dtype)
    vendor = measure(xp, vendor_solver(xp, function), family, n, dtype)
    return {"fmm": own, "vendor": vendor}


# ---- rows


def error_row(xp: Any, function: str, family: str, n: int, dtype: str) -> Row:
    """Return the row of one matrix."""
    errors = family_errors(xp, function, family, n, dtype)
    return {"function": function, "family": family, "dtype": dtype, "side": n, "errors": errors}


def tall_calls(m: int, n: int, dtype: str) -> Mapping[str, Call]:
    """Return the calls that factor a tall normal matrix."""
    import torch

    a: Any = torch.randn(m, n, device="cuda", dtype=getattr(torch, dtype))
    return {"torch": partial(torch.linalg.qr, a), "fmm": partial(fmm.linalg.qr, a)}


def tall_row(machine: Machine, m: int, n: int, dtype: str) -> Row:
    """Return the row of the times of QR factors."""
    free_gpu_memory()
    samples = rounded_samples(paired_samples(tall_calls(m, n, dtype), ROUNDS, SAMPLE_SECONDS, machine.clock, warm=1))
    speedup = round(paired_speedup(samples["torch"], samples["fmm"]), 4)
    return {
        "function": "qr",
        "family": "tall",
        "dtype": dtype,
        "m": m,
        "side": n,
        "speedup": speedup,
        "samples": samples,
    }


def cases_of(machine: Machine, xp: Any) -> Iterator[tuple[Row, Callable[[], Row]]]:
    """Yield what a row measures, and the function that measures it."""
    n = GPU_SIDE if machine.on_gpu else HOST_SIDE
    for dtype in TYPES:
        for function in ERRORS:
            for family in FAMILIES:
                fields = {"function": function, "family": family, "dtype": dtype, "side": n}
                yield fields, partial(error_row, xp, function, family, n, dtype)
        for m, columns in TALL_SHAPES if machine.on_gpu else ():
            fields = {"function": "qr", "family": "tall", "dtype": dtype, "m": m, "side": columns}
            yield fields, partial(tall_row, machine, m, columns, dtype)


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    head = f"{row['function']:17}{row['family']:14}{row['dtype']:8}{row['side']:6}"
    if row["failure"]:
        return f"{head}  {row['failure'][:90]}"
    if "samples" in row:
        times = ", ".join(f"{name} {1e3 * median(seconds):.2f} ms" for name, seconds in row["samples"].items())
        return f"{head}  {row['m']} rows: {row['speedup']:.2f}  {times}"
    own, vendor = row["errors"]["fmm"], row["errors"]["vendor"]
    return f"{head}  " + "; ".join(f"{name} {own[name]:.1e}, the library's {vendor[name]:.1e}" for name in own)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed."""
    parser = benchmark_parser("solver_errors", __doc__, time_limit=1e9, device="0")
    options = parser.parse_args(arguments)
    machine = machine_of(options.device)
    if machine.on_gpu:
        import cupy as xp
    else:
        import numpy as xp
    measure = recorded_failure(lambda case: case[1](), lambda case: case[0])
    return has_failures(run_cases(options, machine, "solver_errors.json", cases_of(machine, xp), measure, text_line))
