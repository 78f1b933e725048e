"""The report's first screen: speedups by type and size, one picture of them, and what they mean in two sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fmm.config.schema import Entry
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.workspace import workspace
from fmm.perfmodel.choose import Choice, Limits, choose, usual_growth
from fmm.perfmodel.stability import expected_growth
from fmm.problem import Operation, Problem
from fmm.runtime.decisions.limits import SHARE
from fmm.tuner.findings.described import instead, not_measured
from fmm.tuner.findings.outcome import gains_from, spelled_growth, vendors_name
from fmm.tuner.report.case import Case
from fmm.tuner.report.pictures import (
    BLACK,
    GREY,
    PLAN_COLOURS,
    cube_side,
    named_at_right,
    new_figure,
    plain_sides,
    round_sides,
)

NO_LIMIT = 1 << 62
SIDES = tuple(1024 << i for i in range(7))
REACH = 2.0  # times the largest side that was measured: beyond, nothing is shown
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


def shown_gains(cases: Sequence[Case]) -> list[Gain]:
    """Of all types, on the sides that are shown: of products, and of halves where they were measured."""
    found: list[Gain] = []
    for case in cases:
        products, halves = ([g for side in SIDES if (g := at(case, side))] for at in (gain_at, half_gain_at))
        beyond = [] if won_by(products, case.dtype) else gains_beyond(case, products)
        found += [*products, *beyond, *halves]
    return found


def won_by(gains: Sequence[Gain], dtype: str) -> list[Gain]:
    """The products of a type that are not left to the vendor."""
    return [gain for gain in gains if gain.kind != LEFT and gain.op == "product" and gain.dtype == dtype]


def gains_beyond(case: Case, shown: Sequence[Gain]) -> list[Gain]:
    """Of a type for which the model takes plans beyond all that was measured only: the first two sides that it does."""
    if case.tuned.trusted is None:
        return []
    last = max((gain.side for gain in shown), default=0)
    found = [(side, _choice(case, side).best) for side in SIDES if side > last]
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
    """A trusted entry of that square, else the model's choice; None beyond what was measured."""
    known = case.tuned.entry((side, side, side))
    if known is not None:
        entry, plan = known
        kind = LEFT if plan == VENDOR else MEASURED
        return _gain(case, side, kind, plan, (entry.speedup, entry.low, entry.high))
    if side > REACH * largest_side(case) or case.tuned.trusted is None:
        return None
    best = _choice(case, side).best
    speedup = 1 / best.time
    return _gain(case, side, LEFT if best.plan == VENDOR else PREDICTED, best.plan, (speedup, speedup, speedup))


def _choice(case: Case, side: int) -> Choice:
    """The model's, with half of the memory that is left beside the operands, as the runtime allows itself."""
    problem = Problem(side, side, side, case.dtype)
    memory = (case.section["conditions"] or {}).get("memory")
    left = NO_LIMIT if not memory else max(int(SHARE * (memory - 3 * problem.itemsize * side**2)), 0)
    return choose(problem, case.choosing, Limits(left, usual_growth(case.choosing.batches)))


def _gain(
    case: Case, side: int, kind: str, plan: Plan, speedup: tuple[float, float, float], op: Operation = "product"
) -> Gain:
    problem = Problem(side, side, side, case.dtype, op=op)
    needed = workspace(plan, *problem.size, problem.itemsize, op=op)
    growth = expected_growth(plan, case.dtype, not case.calibration.batches)
    return Gain(case.dtype, side, kind, *speedup, str(plan), growth, needed, op)


def largest_side(case: Case) -> float:
    """Of the cubes with as much work as what was measured."""
    return max((cube_side(t.problem) for t in case.tuning.trials if t.seconds and t.part == "whole"), default=0.0)


def gains_frame(gains: Sequence[Gain]) -> Any:
    """The same as a pandas DataFrame, a row a type and side."""
    import pandas

    return pandas.DataFrame([vars(gain) for gain in gains], columns=list(Gain.__dataclass_fields__))


# ---- what it means

KINDS = {MEASURED: "measured", PREDICTED: "predicted", BEYOND: "predicted"}


def meaning_of_cases(cases: Sequence[Case], gains: Sequence[Gain]) -> str:
    """That of all that is used, behind what is not used and why, and before what would be gained besides."""
    unused: dict[str, list[str]] = {}
    for case in cases:
        if case.tuned.doubts:
            unused.setdefault(case.tuned.doubts[0], []).append(case.dtype)
    said = [f"The tuned model of {', '.join(types)} is not used: {doubt}." for doubt, types in unused.items()]
    if unused:
        doubted = next(case for case in cases if case.tuned.doubts)
        without = instead(doubted.tuned.identity, doubted.dtype)
        said += [f"Without it {without}; tune again when the device is idle."]
    if gains or not unused:
        said += [meaning(gains, {c.dtype: first for c in cases if (first := starts_at(c))}, library(cases))]
    return " ".join(said)


def notes_of_cases(cases: Sequence[Case]) -> list[str]:
    """What a reader of the page must know beside that: who else multiplies on such a device."""
    return [f"Of {case.dtype} {'; '.join(not_measured(case.used))}." for case in cases if case.used.left_out]


def library(cases: Sequence[Case]) -> str:
    return vendors_name(cases[0].calibration) if cases else "the vendor's product"


def starts_at(case: Case) -> int | None:
    """From which side on the model takes plans; None where it never does, or is not used."""
    return gains_from(case.choosing, case.dtype) if case.tuned.trusted is not None else None


def meaning(gains: Sequence[Gain], starts: Mapping[str, int] | None = None, base: str = "the vendor's product") -> str:
    """In two sentences: from which size, how much; at which error and workspace. `starts`: where the model takes plans
    first, which may be between the sides that are shown."""
    types = dict.fromkeys(gain.dtype for gain in gains)
    won = [gain for dtype in types for gain in won_by(gains, dtype)]
    if not won:
        return f"On this device {base} is the fastest at all sizes that were tried: fmm leaves all to it."
    first = [min(own, key=lambda g: g.side) for dtype in types if (own := won_by(won, dtype))]
    best = max(won, key=lambda gain: gain.speedup)
    beyond = [g.dtype for g in first if g.kind == BEYOND]
    worst, largest = (max(won, key=key) for key in (lambda g: g.error_growth, lambda g: g.workspace))
    faster = "is faster" if any(gain.kind == MEASURED for gain in won) else "is predicted to be faster"
    known = any(gain.kind == MEASURED for gain in won)
    where = ", ".join(_start(g, (starts or {}).get(g.dtype), known) for g in first)
    unseen = f" (nothing as large was measured in {', '.join(beyond)})" if beyond else ""
    room = f"{largest.workspace / 2**30:.1f} GiB of workspace ({largest.dtype}, {largest.side})"
    return (
        f"On square matrices fmm.matmul {faster} than {base} from a side of {where} on{unseen}; of the sides in the "
        f"table most is gained at {best.side}: {best.speedup:.2f} times as fast ({best.dtype}, {KINDS[best.kind]}). "
        f"On these its expected error is at most about {spelled_growth(worst.error_growth)} times the usual one "
        f"({worst.dtype}), and it takes up to {room}, but no more than half of the free memory unless told otherwise."
    )


def _start(first: Gain, modelled: int | None, known: bool) -> str:
    """The first side that is told of, or the one before it from which on the model gains; which of the two is said if
    some are measured (`known`)."""
    if modelled is None or modelled >= first.side:
        return f"{first.side} ({first.dtype}{f': {KINDS[first.kind]}' if known else ''})"
    return f"about {modelled} ({first.dtype}{': predicted' if known else ''})"


# ---- the picture

WIDE, NARROW = (7.6, 4.0), (3.8, 3.2)  # inches, on a screen and on a phone


def speedup_of_all_types(cases: Sequence[Case], gains: Sequence[Gain], size: tuple[float, float] = WIDE) -> Any:
    """Speedup over the side of square products: lines are the model's, dashed further than twice what was measured;
    points are measured, with 95 % intervals."""
    made, axes = new_figure(*size)
    ends = []
    for i, case in enumerate(cases):
        colour = PLAN_COLOURS[i % len(PLAN_COLOURS)]
        own = [gain for gain in gains if gain.dtype == case.dtype and gain.op == "product"]
        curve, top = list(_curve(case, own)), REACH * largest_side(case)
        if curve:
            known = [point for point in curve if point[0] <= top]
            axes.plot(*zip(*known, strict=True), color=colour, linewidth=1.3)
            beyond = curve[len(known) - 1 :]
            axes.plot(*zip(*beyond, strict=True), color=colour, linewidth=1.3, linestyle=(0, (2, 1.5)))
            ends.append((*curve[-1], case.dtype))
        points = [(e.size[0], e) for e in _squares(case)]
        if points:
            x, y = [side for side, _ in points], [e.speedup for _, e in points]
            spread = [e.speedup - e.low for _, e in points], [e.high - e.speedup for _, e in points]
            axes.errorbar(x, y, spread, fmt="o", color=colour, markersize=3.5, elinewidth=0.8)
        if not curve and own:
            ends.append((own[-1].side, own[-1].speedup, case.dtype))
    axes.axhline(1, color=BLACK, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set(xscale="log", xlabel="side of square matrices", ylabel=f"times as fast as {library(cases)}")
    title = "Speedup (lines: the model's choice; points: measured)" if size == WIDE else "Speedup"
    axes.set_title(title, color=GREY if not gains else BLACK)
    named_at_right(axes, ends)
    plain_sides(axes)
    return made


def caption_of_all_types(cases: Sequence[Case]) -> str:
    """What that picture shows, that it has no points, if so, and which lines no point can be near."""
    none = "" if any(map(_squares, cases)) else " No square was measured to gain, so that there are none."
    used = {case.dtype: case.used for case in cases if case.tuned.trusted is not None}
    assumed = [dtype for dtype, known in used.items() if known.assumed or known.left_out]
    by = f" The line of {', '.join(assumed)} goes by rates of the datasheet too: nothing was measured of these."
    return f"{(speedup_of_all_types.__doc__ or '').strip()}{none}{by if assumed else ''}"


def _curve(case: Case, own: Sequence[Gain]) -> Iterator[tuple[float, float]]:
    """Side and speedup of the model's choice, for round sides: others would show their fringes. As far as was measured,
    or as gains are shown."""
    top = max([REACH * largest_side(case), *(gain.side for gain in own)])
    for side in round_sides(0, top):
        if case.tuned.trusted is not None:
            yield float(side), 1 / _choice(case, side).best.time


def _squares(case: Case) -> list[Entry]:
    """The certified entries of square products that gain, but for those without workspace."""
    products = [e for e in case.tuned.entries.values() if e.op == "product" and len(set(e.size)) == 1]
    return [e for e in products if e.verified and not e.lean and e.plan != "vendor"]
