"""Solvers of dense linear algebra whose work is matrix products of fmm: solve_triangular, cholesky, inv, qr, lstsq."""

from fmm.linalg.cholesky_factors import cho_solve, cholesky
from fmm.linalg.inverse import inv
from fmm.linalg.least_squares import lstsq
from fmm.linalg.qr_factors import qr
from fmm.linalg.triangular import solve_triangular

__all__ = ["cho_solve", "cholesky", "inv", "lstsq", "qr", "solve_triangular"]
