"""Solvers beside torch.linalg on a GPU: `python -m benchmarks solvers [--device 0] [--quick]`.

Matrices for LU factors and linear systems have normal entries. All others are symmetric positive definite with a
condition number below 10, or Cholesky factors of these. Triangular systems have as many right sides as rows, linear
systems 64. The speedup is torch.linalg's time over fmm.linalg's, in shuffled rounds. Each result's backward error
stands beside that of torch.linalg. Samples go to results/<device>/solvers.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import fmm
from benchmarks.harness import (
    Call,
    Clock,
    Row,
    benchmark_parser,
    compared_with_torch,
    free_gpu_memory,
    has_failures,
    machine_of,
    recorded_failure,
    run_cases,
)

SIDES, QUICK_SIDES = (2048, 4096, 8192, 16384), (4096,)
TYPES = ("float32", "float64")
FUNCTIONS = ("solve_triangular", "cholesky", "lu_factor", "solve", "solve, refined", "inv", "inv, positive")
RIGHT_SIDES = 64  # columns of b in the linear systems
ROUNDS, QUICK_ROUNDS, SAMPLE_SECONDS = 7, 3, 0.02


@dataclass(frozen=True)
class Case:
    """A solver's function, the element type, and the side of the matrix."""

    function: str
    dtype: str
    side: int


class System:
    """A positive definite matrix, its Cholesky factor, and right sides."""

    def __init__(self, case: Case) -> None:
        import torch

        torch.manual_seed(case.side)
        self.torch: Any = torch
        options = {"device": "cuda", "dtype": getattr(torch, case.dtype)}
        self.sides = torch.randn(case.side, case.side, **options)
        identity = torch.eye(case.side, **options)
        self.matrix = self.sides @ self.sides.mT / case.side + 2 * identity
        self.factor = torch.linalg.cholesky(self.matrix)

    def calls(self, function: str) -> tuple[Call, Call, Callable[[Any], float]]:
        """Return the calls of torch.linalg and of fmm.linalg, and the function for the backward error of a result."""
        own, theirs = fmm.linalg, self.torch.linalg
        if function == "solve_triangular":
            return (
                partial(theirs.solve_triangular, self.factor, self.sides, upper=False),
                partial(own.solve_triangular, self.factor, self.sides, lower=True),
                lambda x: self._relative(self.factor.double() @ x.double() - self.sides, self.factor, x),
            )
        if function == "cholesky":
            calls = partial(theirs.cholesky, self.matrix), partial(own.cholesky, self.matrix)
            return *calls, lambda x: self._relative(x.double() @ x.double().mT - self.matrix, self.matrix)
        if function == "lu_factor":
            calls = partial(theirs.lu_factor, self.sides), partial(own.lu_factor, self.sides)
            return *calls, self._factor_error
        if function.startswith("solve"):
            columns = self.matrix[:, :RIGHT_SIDES].contiguous()
            return (
                partial(theirs.solve, self.sides, columns),
                partial(own.solve, self.sides, columns, refine=function == "solve, refined"),
                lambda x: self._relative(self.sides.double() @ x.double() - columns, self.sides, x),
            )
        is_positive = function == "inv, positive"
        return (
            partial(theirs.inv, self.matrix),
            partial(own.inv, self.matrix, assume_a="pos" if is_positive else "gen"),
            lambda x: self._relative(self._subtract_identity(self.matrix.double() @ x.double()), self.matrix, x),
        )

    def _factor_error(self, factors: tuple[Any, Any]) -> float:
        """Return the norm of P L U - A over the norm of A."""
        lu, pivots = factors
        permutation, lower, upper = self.torch.lu_unpack(lu, pivots)
        product = lower.double() @ upper.double()
        return self._relative(product[permutation.argmax(1)] - self.sides, self.sides)

    def _subtract_identity(self, x: Any) -> Any:
        x.diagonal().sub_(1)
        return x

    def _relative(self, residual: Any, *factors: Any) -> float:
        """Return the norm of a residual over the product of the factors' norms."""
        scale = 1.0
        for x in factors:
            scale *= float(x.norm())
        return float(residual.norm()) / scale


def measure_case(case: Case, rounds: int, clock: Clock) -> Row:
    """Return the backward errors and the samples of both calls."""
    free_gpu_memory()
    theirs, own, error = System(case).calls(case.function)
    errors = {"torch": error(theirs()), "fmm": error(own())}
    compared = compared_with_torch(theirs, own, rounds, SAMPLE_SECONDS, clock, warm=1)
    return {**asdict(case), "errors": errors, **compared}


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    head = f"{row['function']:18}{row['dtype']:9}{row['side']:6}"
    if row["failure"]:
        return f"{head}  {row['failure'][:90]}"
    times = ", ".join(f"{name} {1e3 * median(seconds):.2f} ms" for name, seconds in row["samples"].items())
    errors = ", ".join(f"{name} {error:.1e}" for name, error in row["errors"].items())
    return f"{head}{row['speedup']:7.2f}  {times}; backward errors: {errors}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed."""
    parser = benchmark_parser("solvers", __doc__, time_limit=1e9, device="0", quick="one size and few rounds")
    options = parser.parse_args(arguments)
    machine = machine_of(options.device)
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    cases = [
        Case(function, dtype, side)
        for dtype in TYPES
        for side in (QUICK_SIDES if options.quick else SIDES)
        for function in FUNCTIONS
        if function != "solve, refined" or dtype == "float64"
    ]
    measure = recorded_failure(lambda case: measure_case(case, rounds, machine.clock), asdict)
    return has_failures(run_cases(options, machine, "solvers.json", cases, measure, text_line))
