"""Error growth of Strassen's, Winograd's and the more accurate schemes with blocks of two by two, by levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import Any, Final

from benchmarks.papers.bench import Bench
from benchmarks.papers.error_growth import LEAST, SEEDS, SIDE, growth_rows, type_parts
from benchmarks.papers.experiment import Experiment, Key, Numbers, Part, Results, Row
from benchmarks.papers.figure import Figure, quantity
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.stability import classical_bound, error_bound

VARIANTS: Final = ("classical", "strassen", "winograd", "dps", "strassen-huang")
DEPTHS: Final = (1, 2, 3, 4)


def _variant_plan(name: str, depth: int) -> str:
    return " > ".join([name] * depth + ["vendor"])


def variant_names(side: int) -> dict[str, tuple[str, int]]:
    """The plans, with their schemes and levels."""
    depths = [depth for depth in DEPTHS if 2**depth * LEAST <= side]
    return {_variant_plan(name, depth): (name, depth) for name, depth in product(VARIANTS, depths)}


def variant_rows(bench: Bench, side: int, dtype: str, family: str, seeds: Sequence[int] = SEEDS) -> Iterator[Row]:
    """The rows of error growth of the schemes with blocks of two by two, by levels."""
    names = variant_names(side)
    for row in growth_rows(bench, side, [dtype], seeds, [Plan.parse(text) for text in names], [family]):
        name, depth = names[row["key"][0]]
        yield {**row, "key": [name, dtype, family, depth]}


def _variant_parts(bench: Bench, scale: float) -> Iterator[Part]:
    side = max(int(SIDE * scale), 4 * LEAST)
    plans = [Plan.parse(text) for text in variant_names(side)]
    rows = partial(variant_rows, bench, side)
    return type_parts(bench, side, ("float32", "float64"), rows, lambda dtype: plans)


EXPERIMENT: Final = Experiment(
    "error-variants", ("scheme", "type", "family", "levels"), SIDE, _variant_parts, ("type", "family")
)
HIGHAM: Final = {"strassen": 3.0, "winograd": 4.5}  # 12/4 and 18/4 (Higham 1990); of the others fmm's walk says it
BRENT: Final = {"strassen": 4.0}  # D'Alberto's post, Equation 7


def _variant_cells(results: Results) -> list[tuple[Key, str, str, int]]:
    return [(key, str(key[0]), str(key[1]), int(key[3])) for key in results.rows]


def _walked(results: Results) -> Numbers:
    """The bound of the plan, walked, over that of the classical product."""
    return {key: _bound(_variant_plan(name, k)) for key, name, _, k in _variant_cells(results)}


@lru_cache(maxsize=64)
def _bound(plan: str) -> float:
    return error_bound(Plan.parse(plan), SIDE, SIDE, SIDE) / classical_bound(SIDE)


def _closed(factors: dict[str, float]) -> Any:
    def found(results: Results) -> Numbers:
        return {key: factors[name] ** k for key, name, _, k in _variant_cells(results) if name in factors}

    return found


FIGURES: Final = (
    Figure(
        "error-variants",
        "Strassen's, Winograd's and Dumas, Pernet and Sedoglavic's variants by levels, on six families",
        EXPERIMENT,
        {
            "expected": quantity("expected"),
            "on data": quantity("on data"),
            "measured": quantity("growth"),
            "walked bound": _walked,
            "Higham's": _closed(HIGHAM),
            "Brent's": _closed(BRENT),
        },
        "On independent random numbers dps is the most accurate of the three, then Strassen's, then Winograd's; on "
        "numbers in [0, 1] Winograd's is the most accurate, since its sums cancel the mean. Bounds are of the largest "
        "norm and far above all of them.",
        x="levels",
        drawn=lambda key: key[1:3] == ("float32", "normal"),
        unit="error over the vendor's",
    ),
)
