"""Solvers of dense linear algebra, mostly by fmm's products: solve, lu_factor, cholesky, inv, qr, lstsq."""

from fmm.linalg.cholesky_factors import cho_solve, cholesky
from fmm.linalg.determinants import det, slogdet
from fmm.linalg.explain_solvers import EXPLANATIONS
from fmm.linalg.inverse import inv
from fmm.linalg.least_squares import lstsq
from fmm.linalg.lu_factors import lu_factor, lu_solve
from fmm.linalg.qr_factors import qr
from fmm.linalg.solve import refined_solve, solve
from fmm.linalg.triangular import solve_triangular

for _name, _explanation in EXPLANATIONS.items():
    _explanation.__qualname__ = _name  # in the error messages for wrong arguments
    vars(globals()[_name])["explain_call"] = _explanation  # fmm.explain reads the attribute

__all__ = [
    "cho_solve",
    "cholesky",
    "det",
    "inv",
    "lstsq",
    "lu_factor",
    "lu_solve",
    "qr",
    "refined_solve",
    "slogdet",
    "solve",
    "solve_triangular",
]
