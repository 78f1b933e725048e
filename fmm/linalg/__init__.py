"""Solvers of dense linear algebra whose work is matrix products of fmm: fmm.linalg.solve_triangular, cholesky, inv."""

from fmm.linalg.cholesky_factors import cho_solve, cholesky
from fmm.linalg.inverse import inv
from fmm.linalg.triangular import solve_triangular

__all__ = ["cho_solve", "cholesky", "inv", "solve_triangular"]
