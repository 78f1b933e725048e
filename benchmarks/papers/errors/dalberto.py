"""D'Alberto and Nicolau's accuracy, Figure 2: dgemm, HASA and the plain sum against Priest's summation.

Square matrices in float64, uniform in [-1, 1] and [0, 1]; a level of HASA from n = 900 on, two from 1800, three from
3600. The reference is a doubly compensated sum of exact products, sorted by size (section 3.2; there the products are
rounded to an extended precision). It is slow, so that errors are those of some rows and columns; the whole matrices
are judged by a reference of twice the precision, which is compared with Priest's on these entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from benchmarks.papers.bench import Bench
from benchmarks.papers.experiment import Experiment, Numbers, Part, Results, Row, products_of
from benchmarks.papers.figure import Figure, quantity
from benchmarks.papers.matrices import precise_product, priest_product, uniform
from fmm.arrays.numpy_library import to_numpy
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.papers.recursion_points import hasa_plan, levels_until
from fmm.perfmodel.stability import expected_error_growth

POINT: Final = 900  # n1: where one level begins
SIZES: Final = (800, 1000, 1400, 1700, 2000, 2800, 3400, 4000, 5000)
DATA: Final = ("[-1,1]", "[0,1]")
ENTRIES: Final = 16  # rows, and columns, whose entries Priest's summation sums
OF_REFERENCE: Final = 12  # about so many plain products take as long as a part


def hasa_depth(n: int) -> int:
    return len(levels_until((n, n, n), POINT))


def _operands(bench: Bench, data: str, n: int) -> tuple[Any, Any]:
    rng = bench.generator(n)
    return uniform(bench.xp, rng, n) if data == DATA[0] else (rng.random((n, n)), rng.random((n, n)))


def _parts(bench: Bench, scale: float) -> Iterator[Part]:
    """A part for each range of numbers and size."""
    for data, n in product(DATA, SIZES):
        side = max(int(n * scale), 24)
        products = products_of([hasa_plan(hasa_depth(n))], side, "float64")
        yield Part((data, n), partial(_rows, bench, data, n, side), products, 2.0 * side**3 * OF_REFERENCE)


def _rows(bench: Bench, data: str, n: int, side: int) -> Iterator[Row]:
    depth = hasa_depth(n)
    a, b = _operands(bench, data, side)
    at = np.unique(np.linspace(0, side - 1, min(ENTRIES, side)).astype(int))
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


EXPERIMENT: Final = Experiment("dalberto-fig2", ("data", "code", "n"), SIZES[-1], _parts, ("data", "n"))


def _ratio(quantity: str) -> Any:
    """HASA's errors over dgemm's."""

    def ratios(results: Results) -> Numbers:
        found = results.numbers(quantity)
        return {
            (data, n): found[data, "HASA", n] / found[data, "dgemm", n]
            for data, code, n in found
            if code == "HASA" and (data, "dgemm", n) in found
        }

    return ratios


def _powers(base: float) -> Any:
    def powers() -> Numbers:
        return {(data, n): base ** hasa_depth(n) for data, n in product(DATA, SIZES)}

    return powers


def _expected() -> Numbers:
    return {(data, n): expected_error_growth(hasa_plan(hasa_depth(n))) for data, n in product(DATA, SIZES)}


FIGURES: Final = (
    Figure(
        "dalberto-fig2",
        "D'Alberto and Nicolau, Figure 2: largest errors against Priest's summation, n1 = 900",
        EXPERIMENT,
        {"measured": quantity("error"), "measured, all entries": quantity("whole")},
        "All errors grow with n; HASA's are above dgemm's from the first level on. Figure 2 is a plot without numbers, "
        "so nothing is printed beside these.",
        unit="largest error",
        notes=("Rows `row by column` are of the entries that Priest's summation sums.",),
    ),
    Figure(
        "dalberto-fig2-ratio",
        "D'Alberto and Nicolau, section 3.2: HASA's largest error over dgemm's, at most 10 as printed",
        EXPERIMENT,
        {"measured": _ratio("error"), "measured, all entries": _ratio("whole")},
        "Printed: no larger than 10 on either range, and about 2^l, not the bound's 3^l, for l levels. So it is on a "
        "processor, whose product adds up long sums in pieces: of all entries 5 to 6 at three levels on [-1,1] and 8 "
        "to 10.5 on [0,1]. An H200, which adds up all of k, has 2.3 and 3.6 there. The column expected is of such a "
        "product and of random numbers of either sign (table dalberto-bounds has both).",
        computed={"2^l": _powers(2.0), "3^l": _powers(3.0), "expected": _expected},
        keys=("data", "n"),
        unit="error over dgemm's",
    ),
)
