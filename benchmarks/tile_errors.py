"""Errors of the tiled product's kernel, beside products that are more precise than its type."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

import cupy
import numpy as np

from benchmarks.tile_launch import Case, Scale, Spread, launcher, plain
from fmm.kernels.cuda.products.kernel_sizes import TileSizes
from fmm.kernels.cuda.products.simt_kernel import Access

SAMPLED = 64  # rows that are compared with more precise ones
ODD = ((129, 127, 131), (1, 1, 1), (33, 250, 65), (300, 17, 257))  # m, k, n


@lru_cache(maxsize=1)
def _dot() -> Any:
    """Dot products of float64 as if in twice its precision (Ogita, Rump, Oishi 2005: Dot2), rounded at the end."""
    return cupy.RawKernel(
        r"""
extern "C" __global__ void dot(const double* a, const double* b, double* c, int k, int n) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= n) return;
    a += (long long)blockIdx.y * k;
    double sum = 0, lost = 0;  // what rounding took from the products and from their sum
    for (int i = 0; i < k; ++i) {
        const double x = a[i], y = b[(long long)i * n + col];
        const double product = __dmul_rn(x, y), next = __dadd_rn(sum, product), part = __dsub_rn(next, sum);
        lost = __dadd_rn(lost, __dadd_rn(__dsub_rn(sum, __dsub_rn(next, part)), __dsub_rn(product, part)));
        lost = __dadd_rn(lost, __fma_rn(x, y, -product));
        sum = next;
    }
    c[(long long)blockIdx.y * n + col] = sum + lost;
}
""",
        "dot",
    )


def exact(a: Any, b: Any) -> Any:
    """The product of two matrices, or of each pair, more precise than their type."""
    if a.dtype != np.float64:
        return a.astype(np.float64) @ b.astype(np.float64)
    if a.ndim > 2:
        return cupy.stack([exact(x, y) for x, y in zip(a, b, strict=True)])
    (m, k), n = a.shape, b.shape[1]
    a, b, c = cupy.ascontiguousarray(a), cupy.ascontiguousarray(b), cupy.empty((m, n))
    _dot()((-(-n // 128), m), (128,), (a, b, c, np.int32(k), np.int32(n)))
    return c


def error(s: TileSizes, case: Case, access: Access, spread: Spread, dtype: str) -> float:
    """Relative to the product of absolute values, in units of the type's roundoff; infinite if a gap was touched."""
    op, shift = plain(s, case, Scale(0.5, 2.0), spread, dtype), spread.shift
    rng = cupy.random.default_rng(7)
    sizes = [rows * x.leading + shift for rows, x in zip((case.m, case.k, case.m), op.lines, strict=True)]
    memory = {name: cupy.full(size + 64, cupy.nan, dtype) for name, size in zip("ABC", sizes, strict=True)}
    whole = {}
    for (name, x), lines, piece in zip(memory.items(), op.lines, op.pieces, strict=True):
        rows = x[shift : shift + piece.rows * lines.leading].reshape(piece.rows, lines.leading)
        whole[name] = rows[:, : piece.cols]
        whole[name][...] = rng.standard_normal(whole[name].shape, np.dtype(dtype).type)
    a, b, c = (x.copy() for x in whole.values())
    beside = int(cupy.isnan(memory["C"]).sum())
    launcher(op, access, {name: x.data.ptr for name, x in memory.items()})()
    wide = c.astype(np.float64)
    expected, scale = 0.5 * exact(a, b) + 2 * wide, 0.5 * exact(abs(a), abs(b)) + 2 * abs(wide)
    worst = float((abs(whole["C"] - expected) / scale).max() / (np.finfo(dtype).eps / 2))
    return worst if int(cupy.isnan(memory["C"]).sum()) == beside else float("inf")


def checked(s: TileSizes, dtype: str) -> float:
    """The worst error over odd sizes, gaps and shifts, both kinds of access."""
    worst = 0.0
    for m, k, n in ODD:
        spreads = [Spread(*x) for x in product((0, 3), (0, 1))]
        worst = max(worst, *(error(s, Case(m, k, n), "scalar", spread, dtype) for spread in spreads))
        fours = Case(m, -(-k // 4) * 4, -(-n // 4) * 4)
        worst = max(worst, *(error(s, fours, "vector", Spread(gap, 4), dtype) for gap in (0, 4)))
    return worst


def off(a: Any, b: Any, c: Any) -> float:
    """Relative Frobenius error of some rows from the first to the last."""
    rows = cupy.linspace(0, a.shape[-2] - 1, SAMPLED).astype(np.int64)
    expected = exact(a[..., rows, :], b)
    return float(cupy.linalg.norm((c[..., rows, :] - expected).ravel()) / cupy.linalg.norm(expected.ravel()))
