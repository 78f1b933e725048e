"""The error contract as an experiment: expected growth beside measured growth, for plans, types and families of data.

What fmm promises is the expected growth.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from benchmarks.papers.bench import Bench
from benchmarks.papers.error_growth import LEAST, SIDE, growth_rows, plans_on, type_parts
from benchmarks.papers.experiment import Experiment, Key, Numbers, Part, Results, Row
from benchmarks.papers.figure import Figure, quantity
from benchmarks.papers.matrices import FAMILIES
from fmm.dtypes import DTYPES

HOST_TYPES: Final = ("float32", "float64", "complex64", "complex128")
DEVICE_TYPES: Final = tuple(DTYPES)
# Rounding errors of one product are not independent where its partial sums grow alike, which the variance does not
# know: with this factor what is expected on the data is above what is measured, in all of the experiment's rows.
MARGIN: Final = 2.0


def promised(on_data: float) -> float:
    """The growth that is not exceeded; no plan is promised to err less than the vendor."""
    return max(1.0, MARGIN * on_data)


def _parts(bench: Bench, scale: float) -> Iterator[Part]:
    side = max(int(SIDE * scale), 2 * LEAST)

    def rows(dtype: str, family: str) -> Iterator[Row]:
        return growth_rows(bench, side, [dtype], families=[family])

    types = HOST_TYPES if bench.on_host else DEVICE_TYPES
    return type_parts(bench, side, types, rows, lambda dtype: plans_on(bench.on_host, dtype, side))


EXPERIMENT: Final = Experiment("error-growth", ("plan", "type", "family"), SIDE, _parts, ("type", "family"))


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
    "What is expected of independent random numbers, or of ones of one sign if that is more (column expected), is not "
    "exceeded by more than 3 percent on normal and uniform numbers and on low rank; on graded matrices it is by half, "
    "on Kaporin's up to ten times. On positive numbers Winograd's levels err much less. "
    f"{MARGIN:g} times what is expected on the data, and at least the vendor's error (column promised), is never below "
    "what is measured, and at most eight times above."
)


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
)
