"""Sforza's run times: Figures 1 to 4, A^T A by his recursion, by gemm, and by the vendor's syrk.

As in the paper the lower triangle of A^T A is computed, and compared with gemm's whole product. His cutoffs belong to
his device's sizes and are scaled with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any, Final

import fmm
from benchmarks.papers.bench import Bench, Call, time_in_rounds
from benchmarks.papers.experiment import Experiment, ExperimentPart, Key, Numbers, Results, Row
from benchmarks.papers.figure import Figure, quantity_column
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.papers import sforza as paper

ROUNDS: Final = 5
GEMM, SYRK, ONE_LEVEL, RECURSIVE = "gemm", "syrk", "one level", "recursive"


def triangle_plans(dtype: str, n: int, scale: float) -> dict[str, Plan]:
    """Return one level and the recursion to the paper's best depth; at the side of Figure 2 also all depths."""
    found = {what: paper.sforza_plan(dtype, depth, scale) for what, depth in depth_of_algorithm(dtype).items()}
    if n == paper.FIGURE_2_SIDE:
        found |= {f"depth {depth}": paper.sforza_plan(dtype, depth, 0) for depth in paper.COMPARED_DEPTHS}
    return found


def depth_of_algorithm(dtype: str) -> Mapping[str, int]:
    return {ONE_LEVEL: 1, RECURSIVE: paper.BEST_DEPTHS[dtype]}


def _sforza_parts(bench: Bench, scale: float) -> Iterator[ExperimentPart]:
    """Yield a part for each type and size; odd sides stay odd."""
    for dtype, n in product(paper.CUTOFF_ROWS, paper.COMPARED_SIDES):
        side = max(int(n // 2 * scale), 16) * 2 + n % 2
        calls = len(triangle_plans(dtype, n, scale)) + 2
        rows = partial(_sforza_rows, bench, dtype, n, side, scale)
        yield ExperimentPart((dtype, n), rows, work=2.0 * side**3 * calls * (ROUNDS + 1))


def _sforza_rows(bench: Bench, dtype: str, n: int, side: int, scale: float) -> Iterator[Row]:
    """Yield the seconds of gemm, of syrk and of every plan, or the reason why a plan failed."""
    x = bench.to_storage_type(bench.generator(n).standard_normal((side, side)), dtype)
    left = bench.xp.ascontiguousarray(x.T)  # a copy, so that no library recognises x's transpose
    calls = {GEMM: bench.call(VENDOR, left, x), SYRK: triangle_call(x, VENDOR)}
    plans, failed = triangle_plans(dtype, n, scale), dict[str, str]()
    for code, plan in plans.items():
        try:
            calls[code] = triangle_call(x, plan)
        except (PlanError, MemoryError) as error:
            failed[code] = str(error)
    seconds = time_in_rounds(bench, calls, ROUNDS)
    for code in (*calls, *failed):
        said = {"seconds": seconds[code]} if code in seconds else {"failed": failed[code]}
        yield {"key": [dtype, n, code], "plan": str(plans.get(code, VENDOR)), "side": side, **said}


def triangle_call(x: Any, plan: Plan) -> Call:
    """Return a call that computes the lower triangle of x^T x, after a warm-up."""
    multiply = partial(fmm.gram, x, fill="lower", plan=plan)
    return partial(multiply, out=multiply())


EXPERIMENT: Final = Experiment("sforza-fig4", ("type", "n", "code"), paper.FIGURE_2_SIDE, _sforza_parts, ("type", "n"))


def _speedups_over(base: str, results: Results) -> dict[Key, float]:
    """Return the speedups over gemm, or over syrk."""
    seconds = results.numbers("seconds")
    return {
        (dtype, n, code): seconds[dtype, n, base] / x
        for (dtype, n, code), x in seconds.items()
        if code not in (GEMM, SYRK)
    }


def _by_size(base: str, results: Results) -> Numbers:
    return {key: x for key, x in _speedups_over(base, results).items() if key[2] in (ONE_LEVEL, RECURSIVE)}


def _by_depth(base: str, results: Results) -> Numbers:
    found = _speedups_over(base, results).items()
    return {(key[0], int(str(key[2]).split()[1])): x for key, x in found if str(key[2]).startswith("depth")}


def _best_speedups(results: Results) -> Numbers:
    """Return the largest speedups at any size, and the depth of the largest speedup at the side of Figure 2."""
    found: dict[Key, float] = {}
    for (dtype, _, code), x in _by_size(GEMM, results).items():
        found[dtype, code] = max(x, found.get((dtype, code), 0.0))
    by_depth = _by_depth(GEMM, results)
    for dtype in dict.fromkeys(dtype for dtype, _ in by_depth):
        found[dtype, BEST_DEPTH_NAME] = float(
            max(paper.COMPARED_DEPTHS, key=lambda depth: by_depth.get((dtype, depth), 0.0))
        )
    return found


BEST_DEPTH_NAME: Final = "best depth"
PRINTED_BEST: Final[Numbers] = {
    (dtype, what): float(numbers[dtype])
    for dtype in paper.CUTOFF_ROWS
    for what, numbers in (
        (ONE_LEVEL, paper.ONE_LEVEL_SPEEDUPS),
        (RECURSIVE, paper.RECURSIVE_SPEEDUPS),
        (BEST_DEPTH_NAME, paper.BEST_DEPTHS),
    )
}


# ---- what follows from the counts, and from datasheets


def _computed_by_size(find: Callable[[Plan, str, int], float]) -> Numbers:
    return {
        (dtype, n, what): find(paper.sforza_plan(dtype, depth), dtype, n)
        for dtype, n in product(paper.CUTOFF_ROWS, paper.COMPARED_SIDES)
        for what, depth in depth_of_algorithm(dtype).items()
    }


def _computed_by_depth(find: Callable[[Plan, str, int], float]) -> Numbers:
    return {
        (dtype, depth): find(paper.sforza_plan(dtype, depth, 0), dtype, paper.FIGURE_2_SIDE)
        for dtype, depth in product(paper.CUTOFF_ROWS, paper.COMPARED_DEPTHS)
    }


def _computed_best(find: Callable[[Plan, str, int], float]) -> Numbers:
    """Return the computed speedups at the side of Figure 2."""
    return {(dtype, what): x for (dtype, n, what), x in _computed_by_size(find).items() if n == paper.FIGURE_2_SIDE}


def _computed_columns(make: Callable[[Callable[[Plan, str, int], float]], Numbers]) -> dict[str, Callable[[], Numbers]]:
    return {name: partial(make, find) for name, find in paper.COMPUTED_SPEEDUPS.items()}


COMMENTARY: Final = (
    "The figures are plots; the published values are the best values in the text. The column `at most` is the inverse "
    "of the share of multiplications that remain. Speedups are predicted for a GTX 1050. Its rate in double precision "
    "is 1/32 of the rate in single precision, so sums take a negligible share of the time. On today's chips the rates "
    "differ less, and sums take as long as the saved multiplications."
)
FIGURES: Final = (
    Figure(
        "sforza-sizes",
        "Sforza, Figures 1 and 4: speed-up of A^T A over gemm by size, with the paper's cutoffs",
        EXPERIMENT,
        {"measured": partial(_by_size, GEMM), "measured, over syrk": partial(_by_size, SYRK)},
        COMMENTARY,
        computed=_computed_columns(_computed_by_size),
        keys=("type", "n", "algorithm"),
        unit="speed-up",
        logarithmic=False,
        notes=("An odd side adds a product of one row, and a sum of two products (`dynamic peeling`).",),
    ),
    Figure(
        "sforza-depths",
        "Sforza, Figure 2: speed-up of A^T A over gemm by depth at n = 10000, without cutoffs",
        EXPERIMENT,
        {"measured": partial(_by_depth, GEMM), "measured, over syrk": partial(_by_depth, SYRK)},
        COMMENTARY,
        computed=_computed_columns(_computed_by_depth),
        keys=("type", "depth"),
        x="depth",
        unit="speed-up",
        logarithmic=False,
    ),
    Figure(
        "sforza-best",
        "Sforza, section 3: the largest speed-ups over gemm, and the best depth",
        EXPERIMENT,
        {"measured": _best_speedups},
        COMMENTARY,
        PRINTED_BEST,
        _computed_columns(_computed_best),
        keys=("type", "number"),
        x="number",
        unit="speed-up, or depth",
        logarithmic=False,
        notes=("Published and measured speedups are the largest at any size; computed speedups are for n = 10000.",),
    ),
    Figure(
        "sforza-seconds",
        "Sforza, Figure 3: run time by size",
        EXPERIMENT,
        {"measured": quantity_column("seconds")},
        "Figure 3 is a plot without numbers. syrk is the vendor's function, which also computes one triangle only.",
        unit="seconds",
    ),
)
