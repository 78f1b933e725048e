"""Solvers of dense linear algebra whose work is matrix products of fmm: solve_triangular, cholesky, inv, qr, lstsq."""

from fmm.linalg.cholesky_factors import cho_solve, cholesky
from fmm.linalg.explain_solvers import EXPLANATIONS
from fmm.linalg.inverse import inv
from fmm.linalg.least_squares import lstsq
from fmm.linalg.qr_factors import qr
from fmm.linalg.triangular import solve_triangular

for _name, _explanation in EXPLANATIONS.items():
    vars(globals()[_name])["explain_call"] = _explanation  # fmm.explain reads the attribute

__all__ = ["cho_solve", "cholesky", "inv", "lstsq", "qr", "solve_triangular"]
