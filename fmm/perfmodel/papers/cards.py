"""Compare published numbers of the papers' own machines with predictions for these machines, in one table.

The predictions for GPUs follow from datasheets (fmm.perfmodel.default_calibration). The predictions for the 17 systems
of D'Alberto and Nicolau follow from the rates 1/alpha and 1/pi that their Table 3 prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import exp, log
from statistics import median
from typing import Final, NamedTuple

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.papers import sforza
from fmm.perfmodel.papers.dalberto import TABLE_3_SYSTEMS
from fmm.perfmodel.papers.li_results import li_predicted
from fmm.perfmodel.papers.recursion_points import recursion_point
from fmm.perfmodel.papers.table import PaperTable
from fmm.perfmodel.predict import quick_prediction
from fmm.problem import Problem

LI, HUANG, SFORZA, DALBERTO = "Li et al.", "Huang et al.", "Sforza", "D'Alberto, Nicolau"


class PublishedNumber(NamedTuple):
    """A number that a paper prints for a machine, and the prediction for the same machine."""

    machine: str
    source: str
    quantity: str
    published: float
    predicted: float

    @property
    def predicted_over_published(self) -> float:
        """The predicted number divided by the published number."""
        return self.predicted / self.published


# ---- Huang, Yu and van de Geijn: break-even sides and best speedups on a V100 (Figure 1, sections 1 and 4)

# For each code: the plan, the printed break-even side, and the printed best speedup over cuBLAS; None: not printed.
HUANG_CODES: Final = (
    ("1-level", "strassen-huang.fused.pad4 > tile", 1536, 1.11),
    ("hybrid 2-level", "strassen-huang.sequential > strassen-huang.fused.pad4 > tile", 7680, 1.19),
    ("1-level reference", "strassen-huang.sequential > vendor", 7168, None),
    ("2-level reference", "strassen-huang.sequential > strassen-huang.sequential > vendor", 13312, None),
)
HUANG_SIDES: Final = tuple(range(512, 20481, 512))  # the sides of the paper's squares


def huang_speedups(text: str) -> dict[int, float]:
    """Return the predicted speedups of a plan over cuBLAS on a V100, by the side of a square."""
    calibration, plan, found = datasheet_calibration("V100"), Plan.parse(text), {}
    for n in HUANG_SIDES:
        problem = Problem(n, n, n, "float32")
        vendor, own = (quick_prediction(x, problem, calibration).predicted_seconds for x in (VENDOR, plan))
        found[n] = vendor / own
    return found


def break_even_side(speedups: dict[int, float]) -> int | None:
    """Return the smallest side with a speedup above 1, which the paper prints; None if there is none."""
    return next((n for n, speedup in speedups.items() if speedup > 1), None)


def huang_numbers() -> Iterator[PublishedNumber]:
    """Yield the break-even sides and the best speedups on a V100."""
    for code, text, break_even, best in HUANG_CODES:
        speedups = huang_speedups(text)
        if (side := break_even_side(speedups)) is not None:
            yield PublishedNumber("V100", HUANG, f"{code}: break-even side", break_even, side)
        if best is not None:
            yield PublishedNumber("V100", HUANG, f"{code}: best speedup", best, max(speedups.values()))


# ---- the other papers


def li_numbers() -> Iterator[PublishedNumber]:
    """Yield the run times of Figures 24 and 40 on a C1060 and a C2050."""
    for device, code, n, _, printed, predicted, _ in li_predicted().rows:
        assert isinstance(printed, float) and isinstance(predicted, float)
        yield PublishedNumber(str(device), LI, f"{code}, n = {n}: seconds", printed, predicted)


def sforza_numbers() -> Iterator[PublishedNumber]:
    """Yield the largest speedups over gemm on a GTX 1050, predicted at the side of Figure 2, and the best depths."""
    for dtype, best in sforza.BEST_DEPTHS.items():
        printed = {1: sforza.ONE_LEVEL_SPEEDUPS[dtype], best: sforza.RECURSIVE_SPEEDUPS[dtype]}
        for depth, speedup in printed.items():
            plan = sforza.sforza_plan(dtype, depth)
            predicted = sforza.predicted_speedup("GTX 1050", "gemm", plan, dtype, sforza.FIGURE_2_SIDE)
            yield PublishedNumber(
                "GTX 1050", SFORZA, f"{dtype}, {depth} level{'s' * (depth != 1)}: speedup", speedup, predicted
            )
        by_depth = {
            depth: sforza.predicted_speedup(
                "GTX 1050", "gemm", sforza.sforza_plan(dtype, depth, 0), dtype, sforza.FIGURE_2_SIDE
            )
            for depth in sforza.COMPARED_DEPTHS
        }
        found = max(by_depth, key=lambda depth: by_depth[depth])
        yield PublishedNumber("GTX 1050", SFORZA, f"{dtype}: best number of levels", best, found)


def dalberto_numbers() -> Iterator[PublishedNumber]:
    """Yield the measured recursion points of Table 3, predicted by Equation 3 from the printed rates."""
    for system in TABLE_3_SYSTEMS:
        if system.measured is not None:
            predicted = recursion_point(float(system.alpha_over_pi))
            name = f"{system.name}, {system.processor}"
            yield PublishedNumber(name, DALBERTO, "recursion point", system.measured, predicted)


# ---- the table


def cards() -> PaperTable:
    """Return the table of all published numbers beside the predictions for the same machines."""
    found = [*li_numbers(), *huang_numbers(), *sforza_numbers(), *dalberto_numbers()]
    columns = ("machine", "source", "quantity", "published", "predicted", "predicted / published")
    rows = tuple((*number, number.predicted_over_published) for number in found)
    title = "published numbers of the papers' own machines, and predictions for these machines"
    return PaperTable("cards", title, columns, rows, (*error_notes(found), *notes_on_free_sums()))


def error_notes(found: Iterable[PublishedNumber]) -> Iterator[str]:
    """Yield a note for each paper, with the errors of the predictions of the paper's numbers."""
    by_source: dict[str, list[float]] = {}
    for number in found:
        by_source.setdefault(number.source, []).append(number.predicted_over_published)
    for source, ratios in by_source.items():
        error = exp(median(abs(log(ratio)) for ratio in ratios)) - 1
        yield (
            f"{source}: {len(ratios)} numbers, median error {error:.1%}; predicted / published is "
            f"{min(ratios):.2f} to {max(ratios):.2f}."
        )


def notes_on_free_sums() -> Iterator[str]:
    """Yield a note if the V100's calibration has no rate for sums inside products."""
    if not datasheet_calibration("V100").require_rate("float32").inside:
        codes = " and ".join(code for code, text, *_ in HUANG_CODES if ".fused" in text)
        yield f"V100: a datasheet has no rate for sums inside products; the predictions for {codes} leave them out."


TABLE_FUNCTIONS: Final = (cards,)
