"""The error contract: expected and measured error growth, for plans, types and families of data.

The growth of a plan is its error over that of the vendor's product of the same matrices, in the Frobenius norm. fmm
promises the expected growth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import product
from math import prod, sqrt
from typing import Any, Final

from benchmarks.papers.bench import Bench
from benchmarks.papers.experiment import Experiment, ExperimentPart, Key, Numbers, Results, Row, products_of
from benchmarks.papers.figure import Figure, quantity_column
from benchmarks.papers.matrices import FAMILIES, PreciseProduct, matrices_of_family, reference_product
from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.catalogue import scheme, scheme_names
from fmm.kernels.algorithms.step_table import step_table_names
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.data_growth import data_transforms_of_plan, error_growth_on_data
from fmm.perfmodel.stability import expected_error_growth

# ---- the plans that are measured

MAX_DEPTH: Final = 4
SHORTEST_LEAF: Final = 8  # shortest side of a leaf product
MAX_PRODUCTS: Final = 20_000  # most products of a plan


def scheme_depths(name: str, side: int) -> Iterator[int]:
    """Yield the depths whose leaf products are not too small: up to four levels of 2 x 2 blocks, else up to
    three."""
    found = scheme(name)
    deepest = MAX_DEPTH if found.size == (2, 2, 2) else MAX_DEPTH - 1
    for depth in range(1, deepest + 1):
        if max(found.size) ** depth * SHORTEST_LEAF <= side and found.rank**depth <= MAX_PRODUCTS:
            yield depth


def host_plans(side: int) -> tuple[str, ...]:
    """Return plans of every scheme and step table with one to three or four levels.

    Schemes run stacked and one product at a time. Leaf products have at least the side SHORTEST_LEAF, and a plan at
    most MAX_PRODUCTS products.
    """
    found = []
    for name in scheme_names():
        for depth, order in product(scheme_depths(name, side), ("", ".sequential")):
            found.append(" > ".join([f"{name}{order}"] * depth + ["vendor"]))
    for name in step_table_names():
        found += [
            " > ".join([name] * depth + ["vendor"]) for depth in range(1, MAX_DEPTH) if 2**depth * SHORTEST_LEAF <= side
        ]
    return tuple(dict.fromkeys(found))


# Other traversals and fringes, several levels in one pass, and levels that cut. (Scaling has an experiment of its own.)
OTHER_WAYS: Final = (
    "strassen.overlapped > vendor",
    "winograd.overlapped > winograd.sequential > vendor",
    "winograd.batched.pad16 > vendor",
    "strassen^2.batched.pad16 > vendor",
    "strassen.pad > strassen.pad > vendor",
    "winograd.peel > winograd.peel > vendor",
    "strassen^2 > vendor",
    "strassen*hk223 > vendor",
    "balanced(2) > winograd > vendor",
)
OF_COMPLEX: Final = (
    "3m > vendor",
    "3m > winograd > vendor",
    "3m > strassen > strassen > vendor",
    "3m(strassen) > vendor",
)
DEVICE_PLANS: Final = (
    *(f"strassen{power}.batched.pad16 > vendor" for power in ("", "^2", "^3")),
    *(f"winograd{power}.batched.pad16 > vendor" for power in ("", "^2")),
    "winograd.overlapped.pad16 > strassen^2.batched.pad16 > vendor",
    "dps.batched.pad16 > vendor",
    "dps^2.batched.pad16 > vendor",
    "hk223.batched.pad16 > vendor",
    "laderman.batched.pad16 > vendor",
    "winograd.sequential > vendor",
    "li-fig12 > vendor",
    "li-fig23 > li-fig13 > vendor",
    "hasa > vendor",
    "strassen.batched.pad16 > vendor.inner",
    "tile",
    "strassen.fused.pad4 > tile",
    "strassen.batched.pad16 > tile",
    "lt0",
    "f16x3",
    "strassen^2.batched.pad16 > f16x3",
    "vendor3m",
    "3m > strassen.batched.pad16 > vendor",
    "3m(strassen.pad16) > vendor",
)


@lru_cache(maxsize=64)
def plans_on(on_host: bool, dtype: str, side: int) -> tuple[Plan, ...]:
    """Return the plans that accept the type."""
    names = (*host_plans(side), *OTHER_WAYS, *OF_COMPLEX) if on_host else DEVICE_PLANS
    return tuple(plan for plan in map(Plan.parse, names) if plan.accepts_type(dtype))


# ---- measured growth

SIDE: Final = 2048
SEEDS: Final = (1, 2, 3)
# products of a plan from which on one seed is measured, since the product takes seconds
ONE_SEED_PRODUCTS: Final = 2500
REFERENCE_PRODUCTS: Final = 8  # approximate time of a reference, in plain products
RowsOf = Callable[[str, str], Iterator[Row]]  # takes a type and a family
PlansOf = Callable[[str], Sequence[Plan]]


def frobenius_norm(x: Any) -> float:
    return sqrt(float((abs(x) ** 2).sum()))


def frobenius_error(bench: Bench, exact: PreciseProduct, c: Any, dtype: str) -> float:
    return frobenius_norm(exact.distance(bench.to_double(c, dtype)))


def growth_rows(
    bench: Bench,
    side: int,
    types: Sequence[str],
    seeds: Sequence[int] = SEEDS,
    plans: Sequence[Plan] | None = None,
    families: Sequence[str] = tuple(FAMILIES),
) -> Iterator[Row]:
    """Yield a row for each plan, type and family: the growth of each seed, and the expected growth."""
    for dtype, family in product(types, families):
        found: dict[Plan, list[float]] = {}
        on_data: dict[Plan, float] = {}
        for seed in seeds:
            rng = bench.generator(seed)
            pair = matrices_of_family(bench.xp, rng, FAMILIES[family], side, DTYPES[dtype].is_complex)
            a, b = (bench.to_storage_type(x, dtype) for x in pair)
            wide = [bench.to_double(x, dtype) for x in (a, b)]
            exact = reference_product(bench.xp, wide[0], wide[1], DTYPES[dtype].unit_roundoff)
            vendor = frobenius_error(bench, exact, bench.multiply(VENDOR, a, b, dtype), dtype)
            for plan in plans or plans_on(bench.on_host, dtype, side):
                if seed != seeds[0] and prod(level.products for level in plan.levels) > ONE_SEED_PRODUCTS:
                    continue
                try:
                    error = frobenius_error(bench, exact, bench.multiply(plan, a, b, dtype), dtype)
                except PlanError:
                    continue
                found.setdefault(plan, []).append(error / vendor)
                if plan not in on_data and bench.on_host:
                    on_data[plan] = _cached_growth(plan, dtype, family, seed, wide)
        for plan, growths in found.items():
            found_on_data = on_data.get(plan)
            yield {
                "key": [str(plan), dtype, family],
                "growth": [rounded_to_five_digits(x) for x in growths],
                "on data": None if found_on_data is None else rounded_to_five_digits(found_on_data),
                "expected": rounded_to_five_digits(expected_error_growth(plan, dtype, bench.on_host)),
            }


def rounded_to_five_digits(x: float) -> float:
    """Round to five significant digits."""
    return float(f"{x:.5g}")


def _cached_growth(plan: Plan, dtype: str, family: str, seed: int, wide: Sequence[Any]) -> float:
    """Return the expected growth on the data; plans of the same schemes share one computation."""
    key = tuple(s and s.name for s in data_transforms_of_plan(plan)), len(wide[0]), dtype, family, seed
    if key not in _GROWTH_CACHE:
        _GROWTH_CACHE[key] = error_growth_on_data(plan, *wide)
    return _GROWTH_CACHE[key]


_GROWTH_CACHE: Final[dict[Any, float]] = {}


def type_parts(bench: Bench, side: int, types: Sequence[str], rows: RowsOf, plans: PlansOf) -> Iterator[ExperimentPart]:
    """Yield a part of the experiment for each type and family of data."""
    for dtype, family in product(types, FAMILIES):
        some = plans(dtype)
        work = 2.0 * side**3 * (len(some) + REFERENCE_PRODUCTS) * len(SEEDS)
        yield ExperimentPart((dtype, family), partial(rows, dtype, family), products_of(some, side, dtype), work)


# ---- the figures

HOST_TYPES: Final = ("float32", "float64", "complex64", "complex128")
DEVICE_TYPES: Final = tuple(DTYPES)
# Rounding errors of one product are not independent where its partial sums grow alike; the variance ignores this.
# With this factor the growth expected on the data exceeds the measured growth in all rows of the experiment.
PROMISE_MARGIN: Final = 2.0


def promised_growth(on_data: float) -> float:
    """Return the growth that no product exceeds; no plan is promised to err less than the vendor."""
    return max(1.0, PROMISE_MARGIN * on_data)


def _growth_parts(bench: Bench, scale: float) -> Iterator[ExperimentPart]:
    side = max(int(SIDE * scale), 2 * SHORTEST_LEAF)

    def rows(dtype: str, family: str) -> Iterator[Row]:
        return growth_rows(bench, side, [dtype], families=[family])

    types = HOST_TYPES if bench.on_host else DEVICE_TYPES
    return type_parts(bench, side, types, rows, lambda dtype: plans_on(bench.on_host, dtype, side))


EXPERIMENT: Final = Experiment("error-growth", ("plan", "type", "family"), SIDE, _growth_parts, ("type", "family"))


def _worst_family(results: Results) -> Numbers:
    """Return the largest median over the families, by plan and type."""
    return _over_families(results, max)


def _best_family(results: Results) -> Numbers:
    return _over_families(results, min)


def _over_families(results: Results, pick: Any) -> Numbers:
    found: dict[Key, list[float]] = {}
    for key, growth in results.numbers("growth").items():
        found.setdefault(key[:2], []).append(growth)
    return {key: float(pick(values)) for key, values in found.items()}


COLOURS: Final = ("#0072B2", "#009E73", "#56B4E9", "#D55E00", "#CC79A7", "#E69F00")


def draw_contract(axes: Any, results: Results) -> None:
    """Draw measured over expected growth, a point per row.

    Points are filled at the growth expected on the data, and rings at the expected growth of random data.
    """
    measured, on_data, expected = (results.numbers(name) for name in ("growth", "on data", "expected"))
    for family, colour in zip(FAMILIES, COLOURS, strict=True):
        keys = [key for key in measured if key[2] == family]
        for name, numbers, face in (("on data", on_data, colour), ("expected", expected, "none")):
            found = [(numbers[key], measured[key]) for key in keys if key in numbers]
            x, y = zip(*found, strict=True) if found else ((), ())
            axes.plot(x, y, "o", ms=3, mec=colour, mfc=face, mew=0.5, alpha=0.7, label=f"{family}, {name}")
    top = max(measured.values(), default=1.0)
    axes.plot((0.1, top), (0.1, top), color="#222222", lw=0.8)
    axes.plot((0.1 / PROMISE_MARGIN, top / PROMISE_MARGIN), (0.1, top), color="#222222", lw=0.8, ls="--")
    axes.set(xscale="log", yscale="log", xlabel="expected error over the vendor's", ylabel="measured")
    axes.legend(fontsize=6, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


GROWTH_COMMENTARY: Final = (
    "The column `expected` has the error expected on independent random numbers, or on numbers of one sign if that "
    "error is larger. On normal, uniform and low-rank matrices the measured error is at most 3 percent above the "
    "expected error. On graded matrices the measured error is up to 1.5 times, on Kaporin's matrices up to ten times "
    "the expected error. On positive numbers Winograd's levels have much smaller errors. The column `promised` is "
    f"{PROMISE_MARGIN:g} times the error expected on the data, and at least the vendor's error. The promised error is "
    "never below the measured error, and at most eight times above."
)


FIGURES: Final = (
    Figure(
        "error-growth",
        "The error contract: growth over the vendor's error, by plan, type and family of data",
        EXPERIMENT,
        {
            "expected": quantity_column("expected"),
            "on data": quantity_column("on data"),
            "promised": lambda results: {key: promised_growth(x) for key, x in results.numbers("on data").items()},
            "measured": quantity_column("growth"),
        },
        GROWTH_COMMENTARY,
        x="plan",
        unit="error over the vendor's",
        draw=draw_contract,
    ),
    Figure(
        "error-growth-worst",
        "The error contract by plan and type: expected, and the least and the largest median of six families",
        EXPERIMENT,
        {
            "expected": lambda results: {key[:2]: x for key, x in results.numbers("expected").items()},
            "least": _best_family,
            "measured": _worst_family,
        },
        GROWTH_COMMENTARY,
        keys=("plan", "type"),
        x="plan",
        unit="error over the vendor's",
    ),
)
