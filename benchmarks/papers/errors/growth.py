"""Measured error growth: a plan's error over that of the vendor's product of the same matrices.

Errors are in the Frobenius norm, against a reference of at least twice the precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from math import prod, sqrt
from typing import Any, Final

from benchmarks.papers.bench import Bench
from benchmarks.papers.error_growth import plans_on
from benchmarks.papers.experiment import Part, Row, products_of
from benchmarks.papers.matrices import FAMILIES, Precise, pair_of, reference
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.data_growth import growth_on_data, plan_stages
from fmm.perfmodel.stability import expected_error_growth

SIDE: Final = 2048
SEEDS: Final = (1, 2, 3)
MANY: Final = 2500  # products of a plan, from which on one seed is enough: they take seconds
OF_REFERENCE: Final = 8  # about so many plain products take as long as a reference
RowsOf = Callable[[str, str], Iterator[Row]]  # of a type and a family
PlansOf = Callable[[str], Sequence[Plan]]


def frobenius(x: Any) -> float:
    return sqrt(float((abs(x) ** 2).sum()))


def error_of(bench: Bench, exact: Precise, c: Any, dtype: str) -> float:
    return frobenius(exact.distance(bench.widened(c, dtype)))


def growth_rows(
    bench: Bench,
    side: int,
    types: Sequence[str],
    seeds: Sequence[int] = SEEDS,
    plans: Sequence[Plan] | None = None,
    families: Sequence[str] = tuple(FAMILIES),
) -> Iterator[Row]:
    """A row for each plan, type and family: growths by seed, and what was expected."""
    for dtype, family in product(types, families):
        found: dict[Plan, list[float]] = {}
        on_data: dict[Plan, float] = {}
        for seed in seeds:
            rng = bench.generator(seed)
            pair = pair_of(bench.xp, rng, FAMILIES[family], side, DTYPES[dtype].is_complex)
            a, b = (bench.stored(x, dtype) for x in pair)
            wide = [bench.widened(x, dtype) for x in (a, b)]
            exact = reference(bench.xp, wide[0], wide[1], DTYPES[dtype].unit_roundoff)
            vendor = error_of(bench, exact, bench.multiply(VENDOR, a, b, dtype), dtype)
            for plan in plans or plans_on(bench.on_host, dtype, side):
                if seed != seeds[0] and prod(level.products for level in plan.levels) > MANY:
                    continue
                try:
                    error = error_of(bench, exact, bench.multiply(plan, a, b, dtype), dtype)
                except PlanError:
                    continue
                found.setdefault(plan, []).append(error / vendor)
                if plan not in on_data and bench.on_host:
                    on_data[plan] = _kept_growth(plan, dtype, family, seed, wide)
        for plan, growths in found.items():
            found_on_data = on_data.get(plan)
            yield {
                "key": [str(plan), dtype, family],
                "growth": [rounded(x) for x in growths],
                "on data": None if found_on_data is None else rounded(found_on_data),
                "expected": rounded(expected_error_growth(plan, dtype, bench.on_host)),
            }


def rounded(x: float) -> float:
    """To the digits that an estimate of an error has."""
    return float(f"{x:.5g}")


def _kept_growth(plan: Plan, dtype: str, family: str, seed: int, wide: Sequence[Any]) -> float:
    """The same for all plans of the same schemes."""
    key = tuple(s and s.name for s in plan_stages(plan)), len(wide[0]), dtype, family, seed
    if key not in _KEPT:
        _KEPT[key] = growth_on_data(plan, *wide)
    return _KEPT[key]


_KEPT: Final[dict[Any, float]] = {}


def type_parts(bench: Bench, side: int, types: Sequence[str], rows: RowsOf, plans: PlansOf) -> Iterator[Part]:
    """A part for each type and family of data."""
    for dtype, family in product(types, FAMILIES):
        some = plans(dtype)
        work = 2.0 * side**3 * (len(some) + OF_REFERENCE) * len(SEEDS)
        yield Part((dtype, family), partial(rows, dtype, family), products_of(some, side, dtype), work)
