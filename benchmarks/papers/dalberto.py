"""D'Alberto and Nicolau: accuracy (Figure 2), Balanced and HASA (Figures 3 to 5), fixed depths (Figures 6 to 9).

The matrices are square, in float64, uniform in [-1, 1] or [0, 1]. HASA has one level from n = 900 on, two from 1800,
three from 3600. The reference is a doubly compensated sum of exact products in descending order (section 3.2; the paper
rounds the products to an extended precision). The reference is slow, so it judges some rows and columns. A product of
twice the precision judges the whole matrices, and is itself compared with Priest's sums.

alpha and pi are measured on the device, so the recursion point is the device's (Equation 3). `Balanced` cuts a product
into almost square pieces, then recurses by HASA. `HASA` recurses at once. Both stop at the recursion point. `HASA
dynamic` recurses as long as Equation 2 holds, with alpha and pi measured for the problem and epsilon added to their
ratio. `fmm's model` is the choice of fmm's own model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from math import prod
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.papers.bench import Bench, time_plans
from benchmarks.papers.experiment import Experiment, ExperimentPart, Key, Numbers, Products, Results, Row, products_of
from benchmarks.papers.figure import Figure, quantity_column
from benchmarks.papers.matrices import precise_product, priest_product, uniform_matrices
from fmm.arrays.numpy_library import to_numpy
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.papers.recursion_points import (
    cut_balanced,
    first_level_speedup,
    hasa_plan,
    levels_above_recursion_point,
    recursion_levels,
    recursion_point,
)
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Problem, Shape

# ---- accuracy: Figure 2

FIRST_LEVEL_SIDE: Final = 900  # n1: the side from which on HASA has one level
ERROR_SIZES: Final = (800, 1000, 1400, 1700, 2000, 2800, 3400, 4000, 5000)
DATA_RANGES: Final = ("[-1,1]", "[0,1]")
PRIEST_ENTRIES: Final = 16  # rows, and columns, that Priest's summation computes
PART_PRODUCTS: Final = 12  # approximate time of a part, in plain products


def hasa_depth(n: int) -> int:
    return len(levels_above_recursion_point((n, n, n), FIRST_LEVEL_SIDE))


def _error_operands(bench: Bench, data: str, n: int) -> tuple[Any, Any]:
    rng = bench.generator(n)
    return uniform_matrices(bench.xp, rng, n) if data == DATA_RANGES[0] else (rng.random((n, n)), rng.random((n, n)))


def _error_parts(bench: Bench, scale: float) -> Iterator[ExperimentPart]:
    """Yield a part for each range of numbers and size."""
    for data, n in product(DATA_RANGES, ERROR_SIZES):
        side = max(int(n * scale), 24)
        products = products_of([hasa_plan(hasa_depth(n))], side, "float64")
        yield ExperimentPart(
            (data, n), partial(_error_rows, bench, data, n, side), products, 2.0 * side**3 * PART_PRODUCTS
        )


def _error_rows(bench: Bench, data: str, n: int, side: int) -> Iterator[Row]:
    depth = hasa_depth(n)
    a, b = _error_operands(bench, data, side)
    at = np.unique(np.linspace(0, side - 1, min(PRIEST_ENTRIES, side)).astype(int))
    rows = bench.xp.asarray(at)
    right = b[:, rows]
    priest = priest_product(to_numpy(a[rows]), to_numpy(right))
    whole = precise_product(bench.xp, a, b)
    apart = np.abs((to_numpy(whole.high[rows][:, rows]) - priest) + to_numpy(whole.low[rows][:, rows])).max()
    results = {"dgemm": bench.multiply(VENDOR, a, b), "HASA": bench.multiply(hasa_plan(depth), a, b)}
    for code, c in results.items():
        entries = float(np.abs(to_numpy(c[rows][:, rows]) - priest).max())
        off = whole.distance(c)
        yield {"key": [data, code, n], "levels": depth, "error": entries, "whole": float(off.max())}
    _, plain = bench.row_by_column(a[rows], right)
    error = float(np.abs(to_numpy(plain) - priest).max())
    yield {"key": [data, "row by column", n], "levels": 0, "error": error, "references": float(apart)}


ERROR_EXPERIMENT: Final = Experiment(
    "dalberto-fig2", ("data", "code", "n"), ERROR_SIZES[-1], _error_parts, ("data", "n")
)


def _error_ratio(quantity: str) -> Any:
    """Return the function that computes HASA's errors over dgemm's."""

    def ratios(results: Results) -> Numbers:
        found = results.numbers(quantity)
        return {
            (data, n): found[data, "HASA", n] / found[data, "dgemm", n]
            for data, code, n in found
            if code == "HASA" and (data, "dgemm", n) in found
        }

    return ratios


def _power_of_depth(base: float) -> Any:
    def powers() -> Numbers:
        return {(data, n): base ** hasa_depth(n) for data, n in product(DATA_RANGES, ERROR_SIZES)}

    return powers


def _expected_error_ratios() -> Numbers:
    return {(data, n): expected_error_growth(hasa_plan(hasa_depth(n))) for data, n in product(DATA_RANGES, ERROR_SIZES)}


ERROR_FIGURES: Final = (
    Figure(
        "dalberto-fig2",
        "D'Alberto and Nicolau, Figure 2: largest errors against Priest's summation, n1 = 900",
        ERROR_EXPERIMENT,
        {"measured": quantity_column("error"), "measured, all entries": quantity_column("whole")},
        "All errors grow with n. From the first level on, HASA's errors are larger than dgemm's. Figure 2 is a plot "
        "without numbers, so the table has no printed numbers.",
        unit="largest error",
        notes=("The rows `row by column` are computed from the entries that Priest's summation sums.",),
    ),
    Figure(
        "dalberto-fig2-ratio",
        "D'Alberto and Nicolau, section 3.2: HASA's largest error over dgemm's, at most 10 as printed",
        ERROR_EXPERIMENT,
        {"measured": _error_ratio("error"), "measured, all entries": _error_ratio("whole")},
        "The paper prints ratios of at most 10 on both ranges, and about 2^l for l levels instead of the bound 3^l. "
        "The ratios are larger if dgemm adds up long sums in parts, as on a CPU. The column "
        "`expected` assumes one sum over k and random numbers of either sign (the table dalberto-bounds has both "
        "cases).",
        computed={"2^l": _power_of_depth(2.0), "3^l": _power_of_depth(3.0), "expected": _expected_error_ratios},
        keys=("data", "n"),
        unit="error over dgemm's",
    ),
)


# ---- run times

# The sizes of Figure 3, and of Figures 4 and 5.
FIGURE_3_SIZES: Final = (100, 500, 1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000, 6000, 8000, 10000, 12000)
FIGURES_4_5_SIZES: Final = (1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000, 6000)
EPSILON: Final = 20.0
ROUNDS: Final = 3
DRAWN_PROBLEMS: Final = 40  # problems that are drawn from all triples of sizes
MAX_FLOPS: Final = 6e12  # most flops of a problem
CODE_COUNT: Final = 5
DGEMM, FMM_MODEL = "dgemm", "fmm's model"


def measured_ratio(bench: Bench, shape: Shape) -> float:
    """Return alpha/pi of a problem.

    alpha is the time per element of an addition of this size, pi the time per flop of the product.
    """
    m, k, n = shape
    rng = bench.generator(m + k + n)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    seconds, _ = time_plans(bench, {DGEMM: "vendor"}, a, b, 2)
    _, elements = bench.stream(max(m * n // 4, 1))
    return 2 * prod(shape) / (median(seconds[DGEMM]) * elements)


def hasa_dynamic(shape: Shape, ratio: float, epsilon: float = EPSILON) -> Plan:
    """Return the plan with as many levels as Equation 2 allows."""
    return hasa_plan(len(recursion_levels(shape, ratio, epsilon=epsilon)))


def hasa_static(shape: Shape, point: float) -> Plan:
    """Return the plan with levels down to the recursion point: no level has a side below it."""
    return hasa_plan(len(levels_above_recursion_point(shape, point)))


def balanced_hasa(shape: Shape, point: float) -> Plan:
    """Return the plan that cuts into almost square pieces and then recurses by HASA."""
    (largest, _), *_ = cut_balanced(shape).leaves
    return Plan.parse(f"balanced(2) > {hasa_static(largest, point)}")


def _plans_by_code(bench: Bench, shape: Shape, point: float) -> dict[str, str]:
    return {
        DGEMM: "vendor",
        "Balanced": str(balanced_hasa(shape, point)),
        "HASA": str(hasa_static(shape, point)),
        "HASA dynamic": str(hasa_dynamic(shape, measured_ratio(bench, shape))),
        FMM_MODEL: str(bench.choose_plan(Problem(*shape, "float64"))),
    }


def device_recursion_point(bench: Bench, scale: float) -> Callable[[], float]:
    """Return a function that measures this device's recursion point (Equation 3) at its first call.

    The point comes from a product of the paper's side 1000.
    """
    side = max(int(1000 * scale), 64)
    return cache(lambda: recursion_point(measured_ratio(bench, (side, side, side))))


# ---- Figures 3 to 5


def sampled_shapes(sizes: tuple[int, ...], scale: float, count: int) -> list[Shape]:
    """Return `count` random triples of these sizes, always the same, without those that take too long."""
    rng = random.Random(3)
    found: list[Shape] = []
    triples = list(product(sizes, repeat=3))
    rng.shuffle(triples)
    for sides in triples:
        m, k, n = (max(int(side * scale), 8) for side in sides)
        if 2 * m * k * n <= MAX_FLOPS:
            found.append((m, k, n))
    return found[:count]


def _shape_parts(bench: Bench, scale: float) -> Iterator[ExperimentPart]:
    """Yield a part for the recursion point, and a part for each problem."""
    point = device_recursion_point(bench, scale)
    yield ExperimentPart(("n1",), lambda: ({"key": ["n1", "Equation 3"], "point": point()},))
    for which, sizes in (("Figure 3", FIGURE_3_SIZES), ("Figures 4, 5", FIGURES_4_5_SIZES)):
        for shape in sampled_shapes(sizes, scale, DRAWN_PROBLEMS // 2):
            rows = partial(_shape_rows, bench, which, shape, point)
            yield ExperimentPart(
                (problem_name(which, shape),), rows, _hasa_products(shape), 2.0 * prod(shape) * CODE_COUNT * ROUNDS
            )


def problem_name(which: str, shape: Shape) -> str:
    return f"{which}: {' x '.join(map(str, shape))}"


def _hasa_products(shape: Shape) -> Products:
    """Return the plans of HASA with zero to three levels."""
    return tuple((hasa_plan(depth), Problem(*shape, "float64")) for depth in range(4))


def _shape_rows(bench: Bench, which: str, shape: Shape, point: Callable[[], float]) -> Iterator[Row]:
    return shape_rows(bench, which, shape, point())


def shape_rows(bench: Bench, which: str, shape: Shape, point: float) -> Iterator[Row]:
    """Yield a row for each code on a problem: seconds, and percent less time than dgemm."""
    (m, k, n), name = shape, problem_name(which, shape)
    rng = bench.generator(7)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    plans = _plans_by_code(bench, shape, point)
    seconds, failed = time_plans(bench, plans, a, b, ROUNDS)
    for code, samples in seconds.items():
        gains = [100 * (1 - x / y) for x, y in zip(samples, seconds[DGEMM], strict=True)]
        yield {"key": [name, code], "plan": plans[code], "seconds": samples, "gain": gains}
    for code, why in failed.items():
        yield {"key": [name, code], "plan": plans[code], "failed": why}


SHAPES_EXPERIMENT: Final = Experiment(
    "dalberto-fig3", ("problem", "code"), FIGURE_3_SIZES[-1], _shape_parts, ("problem",)
)


def _gains_over_dgemm(results: Results) -> Numbers:
    return {key: x for key, x in results.numbers("gain").items() if key[1] != DGEMM}


def _average_gains(results: Results) -> Numbers:
    """Return the average gain by figure and code; Figures 4 and 5 show the same problems on two machines."""
    found: dict[Key, list[float]] = {}
    for (problem, code), x in _gains_over_dgemm(results).items():
        which = str(problem).partition(":")[0]
        for figure in ("Figure 4", "Figure 5") if which == "Figures 4, 5" else (which,):
            found.setdefault((figure, code), []).append(x)
    return {key: sum(values) / len(values) for key, values in found.items()}


# The text of sections 4.1.1 and 4.1.2: average execution-time reductions, percent.
PRINTED_3: Final[Numbers] = {
    ("Figure 3", "Balanced"): 1.3,
    ("Figure 3", "HASA dynamic"): 0.5,
    ("Figure 4", "Balanced"): 7.2,
    ("Figure 4", "HASA"): 5.8,
    ("Figure 5", "Balanced"): 7.5,
    ("Figure 5", "HASA"): 7.7,
}


# ---- Figures 6 to 9

SQUARE_SIDES: Final = (500, 750, 1000, 1500, 2000, 2500, 3000, 4000, 5000, 6000, 8000)
FIXED_DEPTHS: Final = (1, 2, 3)


def _square_parts(bench: Bench, scale: float) -> Iterator[ExperimentPart]:
    """Yield a part for the recursion point, and a part for each size."""
    point = device_recursion_point(bench, scale)
    yield ExperimentPart((0,), lambda: ({"key": ["n1", 0], "point": point()},))
    for n in SQUARE_SIDES:
        side = max(int(n * scale), 32)
        shape = side, side, side
        rows = partial(_square_rows, bench, n, side, point, scale)
        yield ExperimentPart((n,), rows, _hasa_products(shape), 2.0 * prod(shape) * (len(FIXED_DEPTHS) + 3) * ROUNDS)


def _square_rows(bench: Bench, n: int, side: int, point: Callable[[], float], scale: float) -> Iterator[Row]:
    rng = bench.generator(n)
    a, b = (rng.standard_normal((side, side)) for _ in range(2))
    plans = {DGEMM: "vendor", **{f"S-{k}": str(hasa_plan(k)) for k in FIXED_DEPTHS}}
    plans["HASA"] = str(hasa_static((side,) * 3, point()))
    plans[FMM_MODEL] = str(bench.choose_plan(Problem(side, side, side, "float64")))
    seconds, _ = time_plans(bench, plans, a, b, ROUNDS)
    for code, samples in seconds.items():
        gains = [100 * (1 - x / y) for x, y in zip(samples, seconds[DGEMM], strict=True)]
        yield {"key": [code, n], "plan": plans[code], "seconds": samples, "gain": gains, "n1": point() / scale}


SQUARE_EXPERIMENT: Final = Experiment("dalberto-fig6", ("code", "n"), SQUARE_SIDES[-1], _square_parts, ("n",))


def _square_gains(results: Results) -> Numbers:
    return {key: x for key, x in results.numbers("gain").items() if key[0] != DGEMM}


def _estimated_gain(results: Results) -> Numbers:
    """Return sp_1 of section 4.2 with the recursion point of this device."""
    points: Any = results.numbers("n1")
    return {
        ("S-1", n): 100 * first_level_speedup(float(n), point) for (code, n), point in points.items() if code == "S-1"
    }


SHAPES_COMMENTARY: Final = (
    "If the recursion point is small, Balanced, HASA and HASA dynamic differ little. If this machine's recursion "
    "point is large, Equation 2 rejects most levels of the figures. Balanced runs the parts of a product one by one. "
    "The problems are random triples of the paper's sizes, drawn once, without the largest; the note tells how sizes "
    "are scaled."
)
SPEED_FIGURES: Final = (
    Figure(
        "dalberto-fig3",
        "D'Alberto and Nicolau, Figures 3 to 5: percent less time than dgemm, problem by problem",
        SHAPES_EXPERIMENT,
        {"measured": _gains_over_dgemm},
        SHAPES_COMMENTARY,
        x="problem",
        unit="percent",
        logarithmic=False,
        lowest=-60,
    ),
    Figure(
        "dalberto-fig3-average",
        "D'Alberto and Nicolau, sections 4.1.1 and 4.1.2: average percent less time than dgemm",
        SHAPES_EXPERIMENT,
        {"measured": _average_gains},
        SHAPES_COMMENTARY,
        PRINTED_3,
        keys=("figure", "code"),
        x="code",
        unit="percent",
        logarithmic=False,
    ),
    Figure(
        "dalberto-fig6",
        "D'Alberto and Nicolau, Figures 6 to 9: percent less time than dgemm on squares",
        SQUARE_EXPERIMENT,
        {"measured": _square_gains, "sp_1": _estimated_gain},
        "The figures are plots without numbers. The text has 7 to 10 percent for one level at 5000, and 24 to 30 "
        "percent for three levels in the best case. sp_1 is the estimate of section 4.2 from the recursion "
        "point of the measured device (table dalberto-n1).",
        unit="percent",
        logarithmic=False,
        lowest=-60,
    ),
    Figure(
        "dalberto-n1",
        "D'Alberto and Nicolau, Equation 3: the recursion point from alpha and pi measured here",
        SQUARE_EXPERIMENT,
        {"measured": quantity_column("point")},
        "n1 = 22 alpha/pi. The paper's 17 systems have recursion points from 390 to 2816 (table dalberto-table3).",
        keys=("number", "n"),
        x="number",
        unit="side",
    ),
)


FIGURES: Final = (*ERROR_FIGURES, *SPEED_FIGURES)
