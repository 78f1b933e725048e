"""Schemes made of others: for the transposed and rotated problem, and composed by the Kronecker product."""

from __future__ import annotations

from itertools import product

from fmm.kernels.algorithms.additions import Matrix
from fmm.kernels.algorithms.scheme import Scheme


def transposed_scheme(scheme: Scheme, name: str) -> Scheme:
    """<n,k,m> from <m,k,n>: C^T = B^T A^T."""
    u = _reordered(scheme.v, scheme.k, scheme.n)
    v = _reordered(scheme.u, scheme.m, scheme.k)
    w = _reordered(scheme.w, scheme.m, scheme.n)
    return Scheme(name, f"transpose of {scheme.name}: {scheme.source}", scheme.n, scheme.k, scheme.m, u, v, w)


def rotated_scheme(scheme: Scheme, name: str) -> Scheme:
    """<k,n,m> from <m,k,n>: the trilinear form sum A_ij B_jl C_li does not change when its factors are rotated."""
    v = _reordered(scheme.w, scheme.m, scheme.n)
    w = _reordered(scheme.u, scheme.m, scheme.k)
    return Scheme(name, f"rotation of {scheme.name}: {scheme.source}", scheme.k, scheme.n, scheme.m, scheme.v, v, w)


def _reordered(x: Matrix, rows: int, columns: int) -> Matrix:
    """The coefficient rows of a grid of blocks, re-sorted for the transposed grid."""
    return tuple(x[i * columns + j] for j in range(columns) for i in range(rows))


def composed_scheme(factors: tuple[Scheme, ...], name: str) -> Scheme:
    """The Kronecker product: the first factor's blocks are multiplied by the second's algorithm, and so on."""
    first, *rest = factors
    for second in rest:
        first = _kronecker(first, second)
    source = " (x) ".join(f.name for f in factors)
    return Scheme(name, source, first.m, first.k, first.n, first.u, first.v, first.w, factors)


def _kronecker(x: Scheme, y: Scheme) -> Scheme:
    def grid(p: Matrix, q: Matrix, columns: int, inner_rows: int, inner_columns: int) -> Matrix:
        rows = []
        for i, s, j, t in product(range(len(p) // columns), range(inner_rows), range(columns), range(inner_columns)):
            outer, inner = p[i * columns + j], q[s * inner_columns + t]
            rows.append(tuple(a * b for a in outer for b in inner))
        return tuple(rows)

    u = grid(x.u, y.u, x.k, y.m, y.k)
    v = grid(x.v, y.v, x.n, y.k, y.n)
    w = grid(x.w, y.w, x.n, y.m, y.n)
    return Scheme(f"{x.name}*{y.name}", "", x.m * y.m, x.k * y.k, x.n * y.n, u, v, w)
