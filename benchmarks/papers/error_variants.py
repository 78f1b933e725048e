"""The errors of schemes with blocks of two by two, and of exact scaling by powers of two before a fast product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import Any, Final

from benchmarks.papers.bench import Bench
from benchmarks.papers.error_growth import SEEDS, SHORTEST_LEAF, SIDE, frobenius_norm, growth_rows, type_parts
from benchmarks.papers.experiment import Experiment, ExperimentPart, Key, Numbers, Results, Row, products_of
from benchmarks.papers.figure import Figure, quantity_column
from benchmarks.papers.matrices import FAMILIES, Array, inner_graded_matrices, reference_product
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.stability import classical_error_bound, error_bound

# ---- schemes with blocks of two by two, by levels

VARIANTS: Final = ("classical", "strassen", "winograd", "dps", "strassen-huang")
DEPTHS: Final = (1, 2, 3, 4)


def _variant_plan(name: str, depth: int) -> str:
    return " > ".join([name] * depth + ["vendor"])


def variant_names(side: int) -> dict[str, tuple[str, int]]:
    """Return the plans, with their schemes and levels."""
    depths = [depth for depth in DEPTHS if 2**depth * SHORTEST_LEAF <= side]
    return {_variant_plan(name, depth): (name, depth) for name, depth in product(VARIANTS, depths)}


def variant_rows(bench: Bench, side: int, dtype: str, family: str, seeds: Sequence[int] = SEEDS) -> Iterator[Row]:
    """Yield the rows of error growth of the schemes with blocks of two by two, by levels."""
    names = variant_names(side)
    for row in growth_rows(bench, side, [dtype], seeds, [Plan.parse(text) for text in names], [family]):
        name, depth = names[row["key"][0]]
        yield {**row, "key": [name, dtype, family, depth]}


def _variant_parts(bench: Bench, scale: float) -> Iterator[ExperimentPart]:
    side = max(int(SIDE * scale), 4 * SHORTEST_LEAF)
    plans = [Plan.parse(text) for text in variant_names(side)]
    rows = partial(variant_rows, bench, side)
    return type_parts(bench, side, ("float32", "float64"), rows, lambda dtype: plans)


VARIANTS_EXPERIMENT: Final = Experiment(
    "error-variants", ("scheme", "type", "family", "levels"), SIDE, _variant_parts, ("type", "family")
)
# growth per level: 12/4 and 18/4 (Higham 1990); fmm's walk gives the others'
HIGHAM_FACTORS: Final = {"strassen": 3.0, "winograd": 4.5}
BRENT_FACTORS: Final = {"strassen": 4.0}  # growth per level by D'Alberto's post, Equation 7


def _variant_cells(results: Results) -> list[tuple[Key, str, str, int]]:
    return [(key, str(key[0]), str(key[1]), int(key[3])) for key in results.rows]


def _walked_bounds(results: Results) -> Numbers:
    """Return the bound of the plan, as the walk of its steps gives it, over the bound of the classical product."""
    return {key: _error_bound_of_plan(_variant_plan(name, k)) for key, name, _, k in _variant_cells(results)}


@lru_cache(maxsize=64)
def _error_bound_of_plan(plan: str) -> float:
    return error_bound(Plan.parse(plan), SIDE, SIDE, SIDE) / classical_error_bound(SIDE)


def _closed_form_bounds(factors: dict[str, float]) -> Any:
    def found(results: Results) -> Numbers:
        return {key: factors[name] ** k for key, name, _, k in _variant_cells(results) if name in factors}

    return found


VARIANT_FIGURES: Final = (
    Figure(
        "error-variants",
        "Strassen's, Winograd's and Dumas, Pernet and Sedoglavic's variants by levels, on six families",
        VARIANTS_EXPERIMENT,
        {
            "expected": quantity_column("expected"),
            "on data": quantity_column("on data"),
            "measured": quantity_column("growth"),
            "walked bound": _walked_bounds,
            "Higham's": _closed_form_bounds(HIGHAM_FACTORS),
            "Brent's": _closed_form_bounds(BRENT_FACTORS),
        },
        "On independent random numbers dps is the most accurate variant, followed by Strassen's and Winograd's. On "
        "numbers in [0, 1] Winograd's variant is the most accurate, since its sums cancel the mean. The bounds are "
        "in the maximum norm and far above all errors.",
        x="levels",
        is_drawn=lambda key: key[1:3] == ("float32", "normal"),
        unit="error over the vendor's",
    ),
)


# ---- scaling by powers of two

# Outside: rows of A and columns of B are scaled, and the product is scaled back. Inside: columns of A are scaled, and
# rows of B inversely. Both: inside first (Ballard, Benson, Druinsky, Lipshitz, Schwartz 2016, section 6). Scaling by
# powers of two rounds nothing. Errors are in the Frobenius norm, and as the largest entry relative to |A| |B|. A
# classical product's error is bounded by |A| |B| for all data, a fast product's error is not.

SCALED_SIDE: Final = 2048
SCALED_PLANS: Final = ("winograd > vendor", "winograd > winograd > vendor", "strassen > strassen > vendor")
SCALED_DATA: Final = {
    "normal": FAMILIES["normal"],
    "Kaporin": FAMILIES["Kaporin"],
    "graded outside": FAMILIES["graded"],
    "graded inside": inner_graded_matrices,
}


# The level `scaled` that comes before each of these plans.
SCALINGS: Final = {
    "none": "",
    "outside": "scaled.outside > ",
    "inside": "scaled.inside > ",
    "inside, outside": "scaled > ",
}


def _scaled_parts(bench: Bench, scale: float) -> Iterator[ExperimentPart]:
    """Yield a part for each kind of data and type."""
    side = max(int(SCALED_SIDE * scale), 32)
    for data, dtype in product(SCALED_DATA, ("float32", "float64")):
        plans = [Plan.parse(text) for text in SCALED_PLANS]
        work = 2.0 * side**3 * len(SCALED_PLANS) * len(SCALINGS)
        yield ExperimentPart(
            (data, dtype), partial(_scaled_rows, bench, data, dtype, side), products_of(plans, side, dtype), work
        )


def _scaled_rows(bench: Bench, data: str, dtype: str, side: int) -> Iterator[Row]:
    pair = SCALED_DATA[data](bench.xp, bench.generator(1), side)
    a, b = (x.astype(dtype) for x in pair)
    left, right = (bench.to_double(x, dtype) for x in (a, b))
    exact = reference_product(bench.xp, left, right, DTYPES[dtype].unit_roundoff)
    entry_bounds = abs(a).astype("float64") @ abs(b).astype("float64")

    def errors(c: Array) -> tuple[float, float]:
        off = exact.distance(c.astype("float64"))
        return frobenius_norm(off), float((off / entry_bounds).max())

    vendor = errors(bench.multiply(VENDOR, a, b))
    for text, (name, scaling) in product(SCALED_PLANS, SCALINGS.items()):
        own = errors(bench.multiply(Plan.parse(f"{scaling}{text}"), a, b))
        norm, entry = (x / y for x, y in zip(own, vendor, strict=True))
        yield {"key": [data, dtype, text, name], "norm": norm, "entry": entry}


SCALED_EXPERIMENT: Final = Experiment(
    "error-scaled", ("data", "type", "plan", "scaling"), SCALED_SIDE, _scaled_parts, ("data", "type")
)
SCALED_FIGURES: Final = (
    Figure(
        "error-scaled",
        "Exact scaling by powers of two before a fast product: the error over the vendor's",
        SCALED_EXPERIMENT,
        {"measured": quantity_column("norm"), "measured, by entries": quantity_column("entry")},
        "On matrices that are graded along k, scaling inside lowers the error from tens of thousands of times to a "
        "few times the vendor's error, in norm and by entries. If rows and columns are graded, scaling outside "
        "lowers the error by entries from 1e9 times to ten times the vendor's, but may triple the error in norm. On "
        "Kaporin's matrices the error by entries falls by a factor of three to forty. On normal numbers scaling "
        "inside changes nothing, and scaling outside adds a tenth to the error.",
        x="scaling",
        unit="error over the vendor's",
    ),
)


FIGURES: Final = (*VARIANT_FIGURES, *SCALED_FIGURES)
