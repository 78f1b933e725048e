"""The steps of solvers and the predicted time of each step; a step is a product or a call of a library function."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from fmm import api
from fmm.kernels.plans.plan import VENDOR
from fmm.problem import Operation
from fmm.runtime.decisions.decide import Decision


class Step(NamedTuple):
    """A step of a solver: a product of an m x k and a k x n matrix, or a function of the library on an m x n matrix."""

    operation: str  # "product", "gram", or a name in VENDOR_COSTS
    m: int
    k: int
    n: int


class StepConditions(NamedTuple):
    """The element type, the device and the limit of the error growth, on which the time of a step depends."""

    dtype: str
    device: str
    limit: float | None = None  # the largest error growth of products


class VendorTimeModel(NamedTuple):
    """The time of a library's function on an m x n matrix.

    The time is n * column_seconds + m * n * entry_seconds + slowdown * (time of a vendor's product with as many flops
    as the function).
    """

    flops: float  # multiple of m n^2
    slowdown: float
    column_seconds: float
    entry_seconds: float = 0.0


# The costs in this table are fitted to measured times of torch.linalg (cuSOLVER and cuBLAS) on an H100, for float32 and
# float64 matrices with 256 to 16384 rows. Most predicted times are within 25 % of the measured times.
VENDOR_COSTS = {
    "cholesky": VendorTimeModel(1 / 3, 1.4, 0.42e-6),
    "solve_triangular": VendorTimeModel(1, 1.34, 0.40e-6),
    "qr": VendorTimeModel(4, 1.85, 3.8e-6, 3.5e-10),
    "lu_factor": VendorTimeModel(2 / 3, 1.65, 2.7e-6),
    "lu_panel": VendorTimeModel(1, 1.0, 1.6e-6),  # the kernel's, on an H200
    "inv": VendorTimeModel(2, 1.8, 3.0e-6),
}
STEP_SECONDS = 1e-4  # seconds of Python, launches and checks for one step on a GPU
# On the host, LAPACK's blocked functions take this multiple of the time of a product with as many flops.
HOST_SLOWDOWN = 1.3


def predicted_seconds(steps: Iterable[Step], conditions: StepConditions) -> float:
    """Return the sum of the predicted times of steps, in seconds."""
    overhead = 0.0 if conditions.device == "cpu" else STEP_SECONDS
    return sum(overhead + step_seconds(step, conditions) for step in steps)


@lru_cache(maxsize=4096)
def step_seconds(step: Step, conditions: StepConditions) -> float:
    """Return the predicted time of a step in seconds."""
    if (cost := VENDOR_COSTS.get(step.operation)) is not None:
        m, n = step.m, step.n
        product = product_seconds(Step("product", m, n, n), conditions, by_vendor=True)
        if conditions.device == "cpu":
            return cost.flops / 2 * HOST_SLOWDOWN * product
        return n * cost.column_seconds + m * n * cost.entry_seconds + cost.flops / 2 * cost.slowdown * product
    return product_seconds(step, conditions)


def product_seconds(step: Step, conditions: StepConditions, by_vendor: bool = False) -> float:
    """Return the predicted time of a product in seconds, by the decided plan or by the vendor (`by_vendor`)."""
    decision = product_decision(step, conditions)
    plan = VENDOR if by_vendor else decision.plan
    seconds = {candidate.plan: candidate.prediction.predicted_seconds for candidate in decision.candidates}
    return seconds.get(plan, seconds[VENDOR] / (1.0 if by_vendor else decision.speedup))


def product_decision(step: Step, conditions: StepConditions) -> Decision:
    """Return the decision of fmm.plan for the product of a step."""
    operation, *sizes = step
    op: Operation = "gram" if operation == "gram" else "product"
    dtype, device, limit = conditions
    return api.plan(*sizes, op=op, dtype=dtype, device=device, max_error_growth=limit)
