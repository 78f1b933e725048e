"""The report's first table: what is gained by type and size, as measured or predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.workspace import workspace
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Operation, Problem
from fmm.tuner.findings.model_in_use import MORE, ODD_SIDES, UNTIMED, gains_from, odd_gains, set_aside
from fmm.tuner.findings.outcome import vendors_name
from fmm.tuner.report.case import REACH, Case

SIDES = tuple(1024 << i for i in range(7))
MEASURED, PREDICTED, LEFT = "measured", "predicted", "vendor"
BEYOND = "beyond"  # predicted, further than REACH: where the model's first plans are


@dataclass(frozen=True)
class Gain:
    """What is gained on squares of a side: measured with its interval, predicted, or nothing, the vendor's."""

    dtype: str
    side: int
    kind: str
    speedup: float
    low: float
    high: float
    plan: str
    error_growth: float
    workspace: int
    op: Operation = "product"
    untried: float = 0.0  # by another plan, which was not tried, if clearly more is predicted of that
    beside: int = 0  # how many rows larger than the side in whose column it stands


def shown_gains(cases: Sequence[Case]) -> list[Gain]:
    """Of all types, on the sides that are shown: of products, and of halves where they were measured."""
    found: list[Gain] = []
    for case in cases:
        products, halves = ([g for side in SIDES if (g := at(case, side))] for at in (gain_at, half_gain_at))
        beyond = [] if won_by(products, case.dtype) else gains_beyond(case, products)
        found += [*products, *beyond, *odd_sides(case), *halves]
    return found


def won_by(gains: Sequence[Gain], dtype: str) -> list[Gain]:
    """The products of a type, of round sides, that are not left to the vendor."""
    own = (gain for gain in gains if gain.op == "product" and gain.dtype == dtype and not gain.beside)
    return [gain for gain in own if gain.kind != LEFT]


def odd_sides(case: Case) -> list[Gain]:
    """Of squares one row larger than those that are shown, of a type for which the vendor is slow on odd sides."""
    if case.tuned.trusted is None or not case.choosing.batches or not odd_gains(case.choosing, case.dtype):
        return []
    found = (gain_at(case, side + 1) for side in SIDES if side + 1 in ODD_SIDES)
    return [replace(gain, beside=1) for gain in found if gain]


def gains_beyond(case: Case, shown: Sequence[Gain]) -> list[Gain]:
    """Of a type for which the model takes plans beyond all that was measured only: the first two sides that it does."""
    if case.tuned.trusted is None:
        return []
    last = max((gain.side for gain in shown), default=0)
    found = [(side, case.choice(side, side, side)) for side in SIDES if side > last]
    gains = [(side, best.plan, 1 / best.time) for side, best in found if best.plan != VENDOR][:2]
    return [_gain(case, side, BEYOND, plan, (gain, gain, gain)) for side, plan, gain in gains]


def half_gain_at(case: Case, side: int) -> Gain | None:
    """Of a matrix times its adjoint, against the vendor's own way, by a trusted entry."""
    known = case.tuned.entry((side, side, side), op="gram")
    if known is None:
        return None
    entry, plan = known
    kind = LEFT if plan == VENDOR else MEASURED
    return _gain(case, side, kind, plan, (entry.speedup, entry.low, entry.high), "gram")


def gain_at(case: Case, side: int) -> Gain | None:
    """A trusted entry of that square, if fmm.matmul goes by it; else the model's choice; None beyond what was timed."""
    known = case.tuned.entry((side, side, side))
    if known is None and (side > REACH * case.largest or case.tuned.trusted is None):
        return None
    best = case.choice(side, side, side)
    predicted = 1 / best.time
    if known is None or set_aside(case.used, known[0]) == UNTIMED:
        kind = LEFT if best.plan == VENDOR else PREDICTED
        return _gain(case, side, kind, best.plan, (predicted, predicted, predicted))
    entry, plan = known
    kind = LEFT if plan == VENDOR else MEASURED
    more = predicted if case.tuned.trusted is not None and predicted > MORE * entry.high else 0.0
    return _gain(case, side, kind, plan, (entry.speedup, entry.low, entry.high), untried=more)


def _gain(
    case: Case,
    side: int,
    kind: str,
    plan: Plan,
    speedup: tuple[float, float, float],
    op: Operation = "product",
    untried: float = 0.0,
) -> Gain:
    problem = Problem(side, side, side, case.dtype, op=op)
    needed = workspace(plan, *problem.size, problem.itemsize, op=op)
    growth = expected_error_growth(plan, case.dtype, not case.calibration.batches)
    return Gain(case.dtype, side, kind, *speedup, str(plan), growth, needed, op, untried)


def gains_frame(gains: Sequence[Gain]) -> Any:
    """The same as a pandas DataFrame, a row a type and side."""
    import pandas

    return pandas.DataFrame([vars(gain) for gain in gains], columns=list(Gain.__dataclass_fields__))


def library(cases: Sequence[Case]) -> str:
    """With whose products all is compared."""
    return vendors_name(cases[0].calibration) if cases else "the vendor's product"


def largest_timed(cases: Sequence[Case]) -> str:
    """How large the products were that were timed: `12800 (float32), 30144 (bfloat16, tf32)`."""
    found: dict[int, list[str]] = {}
    for case in cases:
        if case.largest:
            found.setdefault(round(case.largest), []).append(case.dtype)
    return ", ".join(f"{side} ({', '.join(types)})" for side, types in sorted(found.items()))


def starts_at(case: Case) -> int | None:
    """From which side on the model takes plans; None where it never does, or is not used."""
    return gains_from(case.choosing, case.dtype) if case.tuned.trusted is not None else None
