"""The error contract as an experiment: expected growth beside measured growth, for plans, types and families of data.

A plan's growth is its error in the Frobenius norm over that of the vendor's product of the same matrices, both against
a reference of at least twice the precision. What fmm promises is the expected growth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import sqrt
from typing import Any, Final

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.catalogue import scheme, scheme_names
from fmm.kernels.algorithms.step_table import step_table_names
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.data_growth import growth_on_data, plan_stages
from fmm.perfmodel.stability import classical_bound, error_bound, expected_growth
from fmm.tuner.laboratory.bench import Bench
from fmm.tuner.laboratory.figure import Experiment, Figure, Key, Numbers, Results, Row, quantity
from fmm.tuner.laboratory.matrices import FAMILIES, pair_of
from fmm.tuner.laboratory.precise import Precise, reference

SIDE: Final = 2048
SEEDS: Final = (1, 2, 3)
DEEPEST: Final = 4
LEAST: Final = 16  # the shortest side of a leaf product
MOST: Final = 2500  # products
HOST_TYPES: Final = ("float32", "float64", "complex64", "complex128")
DEVICE_TYPES: Final = tuple(DTYPES)


def scheme_depths(name: str, side: int) -> Iterator[int]:
    """The depths that leave leaf products of a fair size; four levels of squares of two, else three."""
    found = scheme(name)
    deepest = DEEPEST if found.size == (2, 2, 2) else DEEPEST - 1
    for depth in range(1, deepest + 1):
        if max(found.size) ** depth * LEAST <= side and found.rank**depth <= MOST:
            yield depth


def host_plans(side: int) -> tuple[str, ...]:
    """Every scheme, stacked and one product at a time, and every step table, by one to three or four levels."""
    found = []
    for name in scheme_names():
        for depth, order in product(scheme_depths(name, side), ("", ".sequential")):
            found.append(" > ".join([f"{name}{order}"] * depth + ["vendor"]))
    for name in step_table_names():
        found += [" > ".join([name] * depth + ["vendor"]) for depth in range(1, DEEPEST) if 2**depth * LEAST <= side]
    return tuple(dict.fromkeys(found))


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
    "3m(strassen.pad16)",
)


def plans_on(bench: Bench, dtype: str, side: int) -> list[Plan]:
    """Those that take the type."""
    names = host_plans(side) if bench.on_host else DEVICE_PLANS
    if bench.on_host and DTYPES[dtype].is_complex:
        names = (*names, "3m > vendor", "3m > winograd > vendor")
    found = []
    for name in names:
        try:
            plan = Plan.parse(name if not name.startswith("3m(") else f"{name} > vendor")
        except PlanError:
            continue
        if plan.takes_type(dtype):
            found.append(plan)
    return found


# ---- measuring


def frobenius(x: Any) -> float:
    return sqrt(float((abs(x) ** 2).sum()))


def error_of(bench: Bench, exact: Precise, c: Any, dtype: str) -> float:
    return frobenius(exact.distance(bench.widened(c, dtype)))


def contract_rows(
    bench: Bench,
    side: int,
    types: Sequence[str],
    seeds: Sequence[int] = SEEDS,
    plans: Sequence[Plan] | None = None,
    families: Sequence[str] = tuple(FAMILIES),
) -> Iterator[Row]:
    """A row for each plan, type and family: growths by seed, and what was expected."""
    for dtype in types:
        bench.prepare(plans or plans_on(bench, dtype, side), [(side, side, side)], dtype)
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
            for plan in plans or plans_on(bench, dtype, side):
                try:
                    error = error_of(bench, exact, bench.multiply(plan, a, b, dtype), dtype)
                except PlanError:
                    continue
                found.setdefault(plan, []).append(error / vendor)
                if plan not in on_data and bench.on_host:
                    on_data[plan] = _kept_growth(plan, dtype, family, seed, wide)
        for plan, growths in found.items():
            yield {
                "key": [str(plan), dtype, family],
                "growth": growths,
                "on data": on_data.get(plan),
                "expected": expected_growth(plan, dtype, bench.on_host),
            }


def _kept_growth(plan: Plan, dtype: str, family: str, seed: int, wide: Sequence[Any]) -> float:
    """The same for all plans of the same schemes."""
    key = tuple(s and s.name for s in plan_stages(plan)), len(wide[0]), dtype, family, seed
    if key not in _KEPT:
        _KEPT[key] = growth_on_data(plan, *wide)
    return _KEPT[key]


_KEPT: Final[dict[Any, float]] = {}


# Rounding errors of one product are not independent where its partial sums grow alike, which the variance does not
# know: with this factor what is expected on the data is above what is measured, in all of the experiment's rows.
MARGIN: Final = 2.0


def promised(on_data: float) -> float:
    """The growth that is not exceeded; no plan is promised to err less than the vendor."""
    return max(1.0, MARGIN * on_data)


def _measure(bench: Bench, scale: float) -> Iterator[Row]:
    side = max(int(SIDE * scale), 2 * LEAST)
    yield from contract_rows(bench, side, HOST_TYPES if bench.on_host else DEVICE_TYPES)


EXPERIMENT: Final = Experiment("error-growth", ("plan", "type", "family"), SIDE, _measure)


def _worst(results: Results) -> Numbers:
    """By plan and type: the largest median over the families."""
    return _over_families(results, max)


def _least(results: Results) -> Numbers:
    return _over_families(results, min)


def _over_families(results: Results, pick: Any) -> Numbers:
    found: dict[Key, list[float]] = {}
    for key, growth in results.numbers("growth").items():
        found.setdefault(key[:2], []).append(growth)
    return {key: float(pick(values)) for key, values in found.items()}


COLOURS: Final = ("#0072B2", "#009E73", "#56B4E9", "#D55E00", "#CC79A7", "#E69F00")


def draw_contract(axes: Any, results: Results) -> None:
    """Measured over expected growth, a dot a row: dots without data's expectation are rings at the expected one."""
    measured, on_data, expected = (results.numbers(name) for name in ("growth", "on data", "expected"))
    for family, colour in zip(FAMILIES, COLOURS, strict=True):
        keys = [key for key in measured if key[2] == family]
        for name, numbers, face in (("on data", on_data, colour), ("expected", expected, "none")):
            found = [(numbers[key], measured[key]) for key in keys if key in numbers]
            x, y = zip(*found, strict=True) if found else ((), ())
            axes.plot(x, y, "o", ms=3, mec=colour, mfc=face, mew=0.5, alpha=0.7, label=f"{family}, {name}")
    top = max(measured.values(), default=1.0)
    axes.plot((0.1, top), (0.1, top), color="#222222", lw=0.8)
    axes.plot((0.1 / MARGIN, top / MARGIN), (0.1, top), color="#222222", lw=0.8, ls="--")
    axes.set(xscale="log", yscale="log", xlabel="expected error over the vendor's", ylabel="measured")
    axes.legend(fontsize=6, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


SAYS_GROWTH: Final = (
    "What is expected of independent random numbers (column expected) holds for normal and uniform ones and for low "
    "rank, to a factor of one and a half; on positive numbers Winograd's levels err much less, and on Kaporin's "
    f"matrices all err more. {MARGIN:g} times what is expected on the data, and at least the vendor's error (column "
    "promised), is never below what is measured, and at most five times above."
)


# ---- Strassen's, Winograd's and the accurate variants

VARIANTS: Final = ("classical", "strassen", "winograd", "dps", "strassen-huang")
DEPTHS: Final = (1, 2, 3, 4)


def _variant_plan(name: str, depth: int) -> str:
    return " > ".join([name] * depth + ["vendor"])


def variant_rows(bench: Bench, side: int, seeds: Sequence[int] = SEEDS) -> Iterator[Row]:
    """The contract's rows for the schemes with blocks of two by two, by levels, in the types that both devices have."""
    depths = [depth for depth in DEPTHS if 2**depth * LEAST <= side]
    names = {_variant_plan(name, depth): (name, depth) for name, depth in product(VARIANTS, depths)}
    plans = [Plan.parse(text) for text in names]
    for row in contract_rows(bench, side, ("float32", "float64"), seeds, plans):
        plan, dtype, family = row["key"]
        name, depth = names[plan]
        yield {**row, "key": [name, dtype, family, depth]}


def _measure_variants(bench: Bench, scale: float) -> Iterator[Row]:
    yield from variant_rows(bench, max(int(SIDE * scale), 4 * LEAST))


VARIANT_EXPERIMENT: Final = Experiment(
    "error-variants", ("scheme", "type", "family", "levels"), SIDE, _measure_variants
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
        "error-growth",
        "The error contract: growth over the vendor's error, by plan, type and family of data",
        EXPERIMENT,
        {
            "expected": quantity("expected"),
            "on data": quantity("on data"),
            "promised": lambda results: {key: promised(x) for key, x in results.numbers("on data").items()},
            "measured": quantity("growth"),
        },
        SAYS_GROWTH,
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
            "least": _least,
            "measured": _worst,
        },
        SAYS_GROWTH,
        keys=("plan", "type"),
        x="plan",
        unit="error over the vendor's",
    ),
    Figure(
        "error-variants",
        "Strassen's, Winograd's and Dumas, Pernet and Sedoglavic's variants by levels, on six families",
        VARIANT_EXPERIMENT,
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
        unit="error over the vendor's",
    ),
)
