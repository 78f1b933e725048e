"""The parameters of a product other than its sizes and types.

This module does not import plans, so that modules of kernels can import it.
"""

from __future__ import annotations

from typing import NamedTuple

from fmm.kernels.algorithms.additions import Coefficient
from fmm.problem import Fill, Operation


class GemmParams(NamedTuple):
    """The parameters alpha, beta, operation and fill of C = alpha A B + beta C.

    `fill` says which triangles of C a Gram product computes.
    """

    alpha: Coefficient = 1
    beta: Coefficient = 0
    op: Operation = "product"
    fill: Fill = "full"


PLAIN, ACCUMULATE = GemmParams(), GemmParams(1, 1)
