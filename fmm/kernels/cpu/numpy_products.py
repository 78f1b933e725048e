"""NumPy's own products, as they were when fmm was loaded.

Everything in fmm that lets NumPy multiply takes them from here: whoever says `numpy.matmul = fmm.matmul` replaces a
name in NumPy, and fmm, asking for that name, would find itself.
"""

from __future__ import annotations

from numpy import dot, inner, matmul

__all__ = ["dot", "inner", "matmul"]
