"""The parameters of a product other than its sizes and types.

This module imports no plans, so that kernels can import it.
"""

from __future__ import annotations

from typing import NamedTuple

from fmm.kernels.algorithms.additions import Coefficient
from fmm.problem import Fill, Operation


class GemmParams(NamedTuple):
    """The parameters of C = alpha A B + beta C, and for Gram products the triangles of C that are computed."""

    alpha: Coefficient = 1
    beta: Coefficient = 0
    op: Operation = "product"
    fill: Fill = "full"


PLAIN, ACCUMULATE = GemmParams(), GemmParams(1, 1)
