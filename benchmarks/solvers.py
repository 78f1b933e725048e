"""Solvers beside torch.linalg on a GPU: `python -m benchmarks solvers [--device 0] [--quick] [--random N]`.

Matrices for LU factors, linear systems and QR factors have normal entries. All others are symmetric positive definite
with a condition number below 10, or Cholesky factors of these. Triangular systems have as many right sides as rows,
linear systems 64; the matrices of QR factors are 16 times as tall as wide. The speedup is torch.linalg's time over
fmm.linalg's, in shuffled rounds. Each result's backward error stands beside that of torch.linalg. Samples go to
results/<device>/solvers.json.

With --random: N random problems of each function. Sides are spread evenly by logarithm, every second one is odd, and
the number of right sides is random. No problem may be slower than GOAL_SPEEDUP; one below is measured again, longer.
Samples go to results/<device>/random-solvers.json.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
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
    paired_speedup,
    recorded_failure,
    rounded_samples,
    rounds_within,
    run_cases,
    samples_with_first_call,
)

SIDES, QUICK_SIDES = (2048, 4096, 8192, 16384, 32768), (4096,)
TYPES = ("float32", "float64")
FUNCTIONS = ("solve_triangular", "cholesky", "lu_factor", "solve", "solve, refined", "inv", "inv, positive", "qr")
SYSTEMS = ("solve", "solve, refined")
LARGEST_SIDES = {"qr": 4096, "solve_triangular": 32768, "cholesky": 32768}  # of other functions: LARGEST_SIDE
LARGEST_SIDE = 16384
RIGHT_SIDES = 64  # columns of b in the linear systems
ASPECT = 16  # rows over columns of the matrices of QR factors
MOST_ROUNDS, LEAST_ROUNDS, CASE_SECONDS, SAMPLE_SECONDS, LONG_SECONDS = 7, 3, 0.6, 0.02, 0.02
RANDOM_SIDES = (1024, 10000)  # smallest and largest
FEWEST_COLUMNS = 16  # of random right sides
GOAL_SPEEDUP = 0.98
RANDOM_SAMPLE_SECONDS, AGAIN_SECONDS = 0.004, 0.3


@dataclass(frozen=True)
class Case:
    """A solver's function, the element type, the side of the matrix, and the columns of the right sides.

    The matrix of QR factors has `columns` columns and `side` rows.
    """

    function: str
    dtype: str
    side: int
    columns: int


class System:
    """A matrix with normal entries, a positive definite matrix, its Cholesky factor, and right sides."""

    def __init__(self, case: Case) -> None:
        import torch

        torch.manual_seed(case.side)
        self.torch: Any = torch
        self.case = case
        self.options = {"device": "cuda", "dtype": getattr(torch, case.dtype)}

    def _random(self, rows: int, columns: int) -> Any:
        return self.torch.randn(rows, columns, **self.options)

    @cached_property
    def normal(self) -> Any:
        """A matrix with normal entries."""
        return self._random(self.case.side, self.case.side)

    @cached_property
    def matrix(self) -> Any:
        """A positive definite matrix."""
        product = self.normal @ self.normal.mT / self.case.side
        product.diagonal().add_(2)
        return product

    def calls(self) -> tuple[Call, Call, Callable[[Any], float]]:
        """Return the calls of torch.linalg and of fmm.linalg, and the function for the backward error of a result."""
        function, own, theirs = self.case.function, fmm.linalg, self.torch.linalg
        if function == "solve_triangular":
            return self._triangular_calls()
        if function == "cholesky":
            calls = partial(theirs.cholesky, self.matrix), partial(own.cholesky, self.matrix)
            return *calls, lambda x: self._relative(x.double() @ x.double().mT - self.matrix, self.matrix)
        if function == "lu_factor":
            calls = partial(theirs.lu_factor, self.normal), partial(own.lu_factor, self.normal)
            return *calls, self._factor_error
        if function == "qr":
            tall = self._random(self.case.side, self.case.columns)
            calls = partial(theirs.qr, tall), partial(own.qr, tall)
            return *calls, lambda x: self._relative(x[0].double() @ x[1].double() - tall, tall)
        if function in SYSTEMS:
            return self._system_calls(is_refined=function == "solve, refined")
        is_positive = function == "inv, positive"
        return (
            partial(theirs.inv, self.matrix),
            partial(own.inv, self.matrix, assume_a="pos" if is_positive else "gen"),
            lambda x: self._relative(self._subtract_identity(self.matrix.double() @ x.double()), self.matrix, x),
        )

    def _triangular_calls(self) -> tuple[Call, Call, Callable[[Any], float]]:
        factor, sides = self.torch.linalg.cholesky(self.matrix), self._random(self.case.side, self.case.columns)
        return (
            partial(self.torch.linalg.solve_triangular, factor, sides, upper=False),
            partial(fmm.linalg.solve_triangular, factor, sides, lower=True),
            lambda x: self._relative(factor.double() @ x.double() - sides, factor, x),
        )

    def _system_calls(self, is_refined: bool) -> tuple[Call, Call, Callable[[Any], float]]:
        sides = self._random(self.case.side, self.case.columns)
        return (
            partial(self.torch.linalg.solve, self.normal, sides),
            partial(fmm.linalg.solve, self.normal, sides, refine=is_refined),
            lambda x: self._relative(self.normal.double() @ x.double() - sides, self.normal, x),
        )

    def _factor_error(self, factors: tuple[Any, Any]) -> float:
        """Return the norm of P L U - A over the norm of A."""
        lu, pivots = factors
        permutation, lower, upper = self.torch.lu_unpack(lu, pivots)
        product = lower.double() @ upper.double()
        return self._relative(product[permutation.argmax(1)] - self.normal, self.normal)

    def _subtract_identity(self, x: Any) -> Any:
        x.diagonal().sub_(1)
        return x

    def _relative(self, residual: Any, *factors: Any) -> float:
        """Return the norm of a residual over the product of the factors' norms."""
        scale = 1.0
        for x in factors:
            scale *= float(x.norm())
        return float(residual.norm()) / scale


def measure_case(case: Case, clock: Clock) -> Row:
    """Return the backward errors and the samples of both calls."""
    free_gpu_memory()
    theirs, own, error = System(case).calls()
    errors = {"torch": error(theirs()), "fmm": error(own())}
    rounds = rounds_within(CASE_SECONDS, 2 * clock(theirs, 1), LEAST_ROUNDS, MOST_ROUNDS)
    calls = {"torch": theirs, "fmm": own}
    samples = rounded_samples(samples_with_first_call(calls, rounds, SAMPLE_SECONDS, LONG_SECONDS, clock))
    speedup = round(paired_speedup(samples["torch"], samples["fmm"]), 4)
    return {**asdict(case), "errors": errors, "speedup": speedup, "samples": samples}


def measure_random_case(case: Case, clock: Clock) -> Row:
    """Return the samples of both calls; a problem below GOAL_SPEEDUP is measured again, longer."""
    theirs, own, _ = System(case).calls()
    row = compared_with_torch(theirs, own, LEAST_ROUNDS, RANDOM_SAMPLE_SECONDS, clock, warm=1)
    if row["speedup"] < GOAL_SPEEDUP:
        rounds = rounds_within(AGAIN_SECONDS, 2 * row["samples"]["torch"][0], MOST_ROUNDS, 3 * MOST_ROUNDS)
        row = compared_with_torch(theirs, own, rounds, SAMPLE_SECONDS, clock, warm=1)
    return {**asdict(case), **row}


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    head = f"{row['function']:18}{row['dtype']:9}{row['side']:6} x {row['columns']:<6}"
    if row["failure"]:
        return f"{head}  {row['failure'][:90]}"
    times = ", ".join(f"{name} {1e3 * median(seconds):.2f} ms" for name, seconds in row["samples"].items())
    errors = ", ".join(f"{name} {error:.1e}" for name, error in row.get("errors", {}).items())
    return f"{head}{row['speedup']:7.2f}  {times}" + (f"; backward errors: {errors}" if errors else "")


def table_cases(sides: Sequence[int]) -> Iterator[Case]:
    """Yield the cases of the table: every function and type at every side."""
    for side in sides:
        for dtype in TYPES:
            for function in FUNCTIONS:
                is_large = side > LARGEST_SIDES.get(function, LARGEST_SIDE)
                if is_large or (function == "solve, refined" and dtype != "float64"):
                    continue
                if function == "qr":
                    yield Case(function, dtype, ASPECT * side, side)
                else:
                    yield Case(function, dtype, side, RIGHT_SIDES if function in SYSTEMS else side)


def random_cases(count: int) -> Iterator[Case]:
    """Yield `count` random problems of each function, one of each function after another.

    Refinement is left out: it runs because a caller wants it.
    """
    rng, (smallest, largest) = random.Random(1), RANDOM_SIDES
    for number in range(count):
        for function in (name for name in FUNCTIONS if name != "solve, refined"):
            side = int(smallest * (largest / smallest) ** rng.random()) // 2 * 2 + number % 2
            columns = int(FEWEST_COLUMNS * (side / FEWEST_COLUMNS) ** rng.random())
            has_columns = function in ("solve_triangular", "solve", "qr")
            yield Case(function, rng.choice(TYPES), side, columns if has_columns else side)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed, or a random problem is slower than the goal."""
    parser = benchmark_parser("solvers", __doc__, time_limit=1e9, device="0", quick="one size")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="N random problems of each function")
    options = parser.parse_args(arguments)
    machine = machine_of(options.device)
    if options.random:
        cases, file, measure_one = list(random_cases(options.random)), "random-solvers.json", measure_random_case
    else:
        sides = QUICK_SIDES if options.quick else SIDES
        cases, file, measure_one = list(table_cases(sides)), "solvers.json", measure_case
    measure = recorded_failure(lambda case: measure_one(case, machine.clock), asdict)
    rows = run_cases(options, machine, file, cases, measure, text_line)
    slow = [row for row in rows if options.random and row.get("speedup", 1) < GOAL_SPEEDUP]
    if slow:
        print(f"{len(slow)} of {len(rows)} problems are slower than {GOAL_SPEEDUP} times torch's:")
        print(*map(text_line, slow), sep="\n")
    return has_failures(rows) or int(bool(slow))
