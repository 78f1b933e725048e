"""What is asked of a plan, and of each of a level's products, besides sizes and types."""

from __future__ import annotations

from typing import NamedTuple

from fmm.kernels.algorithms.additions import Coefficient
from fmm.problem import Fill, Operation


class Asked(NamedTuple):
    """What is asked of a plan besides sizes: C = alpha A B + beta C, and of a C that is its own adjoint how much."""

    alpha: Coefficient = 1
    beta: Coefficient = 0
    op: Operation = "product"
    fill: Fill = "full"


PLAIN, ADDED = Asked(), Asked(1, 1)
