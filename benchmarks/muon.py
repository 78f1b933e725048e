"""Newton-Schulz steps and stacks of fmm.gram on a GPU: `python -m benchmarks muon [--device 0] [--quick]`.

The speedup is torch's time over fmm's, in shuffled rounds of whole calls in bfloat16. "orthogonalize": five steps of
fmm.orthogonalize beside the same steps by torch.mm and torch.addmm, or torch.bmm and torch.baddbmm. "gram": fmm.gram of
a stack beside torch.bmm. Errors are relative to float64. Samples go to results/<device>/muon.json.
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
from fmm.newton_schulz.coefficients import MUON

MATRICES = ((1, 1024, 1024), (1, 768, 3072), (1, 4096, 4096), (1, 2048, 2048), (1, 256, 256))
STACKS = ((12, 1024, 1024), (24, 768, 3072), (64, 512, 512), (8, 2048, 8192), (48, 768, 768), (16, 128, 128))
GRAM_STACKS = ((16, 2048, 2048), (64, 1024, 1024), (24, 768, 3072), (64, 512, 512))
QUICK_COUNT = 2  # number of cases of each kind in a quick run
STEPS = 5
ROUNDS, QUICK_ROUNDS, SAMPLE_SECONDS = 7, 3, 0.005


@dataclass(frozen=True)
class Case:
    """A function of fmm, the number of matrices in its stack, and their size."""

    function: str
    count: int
    rows: int
    cols: int


def torch_steps(x: Any) -> Any:
    """Return five steps of a wide matrix or stack by torch's own products."""
    import torch

    a, b, c = MUON
    norms = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
    y = torch.div(x, norms).to(x.dtype)
    add_product = torch.addmm if x.ndim == 2 else torch.baddbmm
    for _ in range(STEPS):
        gram = y @ y.mT
        y = add_product(y, add_product(gram, gram, gram, beta=b, alpha=c), y, beta=a)
    return y


def case_calls(case: Case) -> tuple[Call, Call, Callable[[Any], float]]:
    """Return torch's call, fmm's call, and the function for the relative error of a result."""
    import torch

    torch.manual_seed(case.rows)
    x = torch.randn(case.count, case.rows, case.cols, device="cuda", dtype=torch.bfloat16)
    x = x[0] if case.count == 1 else x
    sample = x if case.count == 1 else x[:2]  # the part whose error is computed
    if case.function == "gram":
        theirs, own, exact = (
            partial(torch.bmm, x, x.mT),
            partial(fmm.gram, x, rows=True),
            sample.double() @ sample.double().mT,
        )
    else:
        theirs, own, exact = partial(torch_steps, x), partial(fmm.orthogonalize, x, STEPS), torch_steps(sample.double())

    def error(found: Any) -> float:
        found = found if case.count == 1 else found[:2]
        return float((found.double() - exact).norm() / exact.norm())

    return theirs, own, error


def measure_case(case: Case, rounds: int, clock: Clock) -> Row:
    """Return the errors and the samples of both calls."""
    free_gpu_memory()
    theirs, own, error = case_calls(case)
    errors = {"torch": round(error(theirs()), 5), "fmm": round(error(own()), 5)}
    for _ in range(4):  # a call whose addresses recur becomes a graph
        own()
    compared = compared_with_torch(theirs, own, rounds, SAMPLE_SECONDS, clock, warm=2)
    return {**asdict(case), "errors": errors, **compared}


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    head = f"{row['function']:15}{row['count']:4} x {row['rows']} x {row['cols']}"
    if row["failure"]:
        return f"{head}  {row['failure'][:90]}"
    times = ", ".join(f"{name} {1e6 * median(seconds):.0f} us" for name, seconds in row["samples"].items())
    errors = ", ".join(f"{name} {error:.1e}" for name, error in row["errors"].items())
    return f"{head:36}{row['speedup']:7.2f}  {times}; errors: {errors}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed."""
    parser = benchmark_parser("muon", __doc__, time_limit=1e9, device="0", quick="fewer cases and rounds")
    options = parser.parse_args(arguments)
    machine = machine_of(options.device)
    rounds, count = (QUICK_ROUNDS, QUICK_COUNT) if options.quick else (ROUNDS, None)
    shapes = {"orthogonalize": (*MATRICES[:count], *STACKS[:count]), "gram": GRAM_STACKS[:count]}
    cases = [Case(function, *shape) for function, found in shapes.items() for shape in found]
    measure = recorded_failure(lambda case: measure_case(case, rounds, machine.clock), asdict)
    return has_failures(run_cases(options, machine, "muon.json", cases, measure, text_line))
