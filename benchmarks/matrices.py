"""Random matrices of every library, and errors of products against higher precision."""

from __future__ import annotations

from typing import Any

import numpy as np

REAL_PART_TYPES = {"complex64": "float32", "complex128": "float64"}
OWN_ARITHMETIC = "-ieee"  # suffix of a type with FMM_EMULATION=0
# Entries of C that are compared: whole rows with float64 on the device, or fewer rows and columns with
# extended precision on the host.
SAMPLED_ROWS, EXACT_ROWS, EXACT_COLUMNS = 32, 8, 128
COLUMN_BLOCK = 4096  # columns of B that are copied in float64 at once: a copy of the whole matrix may not fit


def stored_type(dtype: str) -> str:
    """Return the type of the numbers in memory: float32 for tf32 and float32-ieee."""
    dtype = dtype.removesuffix(OWN_ARITHMETIC)
    return "float32" if dtype == "tf32" else dtype


def random_matrix(library: str, shape: tuple[int, ...], dtype: str, data: str = "normal", seed: int = 1) -> Any:
    """Return normal numbers, or uniform ones in [0, 1], as an array of "numpy" or "cupy" or a tensor of "torch".

    The parts of complex numbers are independent.
    """
    dtype = stored_type(dtype)
    real = REAL_PART_TYPES.get(dtype, dtype)
    if library == "torch":
        return _torch_matrix(shape, dtype, data, seed)
    drawn = real if real == "float64" else "float32"  # the generators draw no other types
    xp: Any = np
    if library == "cupy":
        import cupy

        xp = cupy
    rng = xp.random.default_rng([*shape, seed] if library == "numpy" else seed)
    draw = rng.standard_normal if data == "normal" else rng.random
    if dtype == real:
        return draw(shape, dtype=drawn).astype(dtype, copy=False)
    found = xp.empty(shape, dtype)
    found.real, found.imag = draw(shape, dtype=drawn), draw(shape, dtype=drawn)
    return found


def _torch_matrix(shape: tuple[int, ...], dtype: str, data: str, seed: int) -> Any:
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    draw = torch.randn if data == "normal" else torch.rand
    kind = getattr(torch, dtype)
    if kind.is_floating_point and kind not in (torch.float32, torch.float64):
        return draw(*shape, device="cuda", generator=generator).to(kind)
    return draw(*shape, device="cuda", generator=generator, dtype=kind)


def library_of(dtype: str) -> str:
    """Return the GPU library of a type: torch for bfloat16, else CuPy."""
    return "torch" if dtype == "bfloat16" else "cupy"


def library_product(library: str) -> Any:
    """Return the matmul function of "numpy", "cupy" or "torch"."""
    if library == "torch":
        import torch

        return torch.matmul
    if library == "cupy":
        import cupy

        return cupy.matmul
    return np.matmul


def relative_error(a: Any, b: Any, c: Any, lower: bool = False) -> float:
    """Return the error of sampled entries of C = A B in the Frobenius norm; `lower`: of the lower triangle alone.

    Products in double precision are compared with extended precision on the host, others with float64.
    """
    if str(c.dtype).rpartition(".")[2] in ("float64", "complex128"):
        rows = _spread_indices(a.shape[0], EXACT_ROWS)
        cols = _spread_indices(b.shape[1], EXACT_COLUMNS)
        wide = np.clongdouble if "complex" in str(c.dtype) else np.longdouble
        exact = on_host(a[rows]).astype(wide) @ on_host(b[:, cols]).astype(wide)
        error = on_host(c[rows][:, cols]) - exact
        if lower:
            error, exact = (np.where(np.array(cols) <= np.array(rows)[:, None], x, 0) for x in (error, exact))
        return float(np.linalg.norm(error.astype(complex)) / np.linalg.norm(exact.astype(complex)))
    rows = _spread_indices(a.shape[0], SAMPLED_ROWS)
    left, error, norm = in_double(a[rows]), 0.0, 0.0
    for first in range(0, b.shape[1], COLUMN_BLOCK):
        exact = left @ in_double(b[:, first : first + COLUMN_BLOCK])
        off = in_double(c[rows][:, first : first + COLUMN_BLOCK]) - exact
        if lower:  # on the host: entries above the diagonal may be NaN
            below = np.arange(first, first + exact.shape[1]) <= np.array(rows)[:, None]
            off, exact = (np.where(below, on_host(x), 0) for x in (off, exact))
        error += float((abs(off) ** 2).sum())
        norm += float((abs(exact) ** 2).sum())
    return float((error / norm) ** 0.5)


def _spread_indices(length: int, count: int) -> list[int]:
    """Return evenly spread indices."""
    return sorted({int(i) for i in np.linspace(0, length - 1, min(count, length))})


def in_double(x: Any) -> Any:
    """Return an array or a tensor in float64 or complex128."""
    if hasattr(x, "astype"):
        return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    return x.cdouble() if x.is_complex() else x.double()


def on_host(x: Any) -> Any:
    """Return the numbers of an array or a tensor as a NumPy array."""
    if isinstance(x, np.ndarray):
        return x
    return x.get() if hasattr(x, "get") else x.cpu().numpy()
