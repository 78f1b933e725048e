"""What a tuned model means to those who multiply: from which side on squares are faster, by what, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Candidate, Limits, choose, usual_growth
from fmm.problem import Problem

ROW = 16  # a side that is a multiple of it has rows that begin as a device wants them
# Of squares, from 256 to 65536.
SIDES = tuple(round(2 ** (i / 2) / ROW) * ROW for i in range(16, 33))
ODD_SIDES = tuple(2**i + 1 for i in range(9, 15))  # whose rows begin anywhere
LARGE = 4096  # from here on the two are compared: of smaller ones the last wave of tiles decides as much
SHOWN = (2048, 4096, 8192, 16384, 32768, 65536)
MOST = 4  # of them
CLOSE = 1.05
MORE = 1.25  # times as much gained: then odd sides are told of apart

Chosen = Mapping[int, Candidate]


def outcome(calibration: Calibration, dtype: str) -> Iterator[tuple[str, str]]:
    """From which side on squares are not left to the vendor, what the model promises, by which plans, and what that
    costs."""
    base, first = vendors_name(calibration), gains_from(calibration, dtype)
    best = _told(calibration, dtype, first)
    odd = odd_gains(calibration, dtype) if calibration.batches else {}
    if first is None:
        yield "gain", f"none on square matrices: no plan is predicted to be faster than {base}, which multiplies them"
    else:
        yield "gain", f"fmm.matmul is predicted to be faster than {base} on squares from a side of about {first} on,"
        yield "", f"times as fast: {_speedups(best)}"
    if odd:
        least, odd = min(odd), {side: odd[side] for side in list(odd)[-MOST:]}
        yield "" if first else "gain", f"on odd sides, where {base} is slow, from about {least} on: {_speedups(odd)}"
    if odd or best:
        yield from _costs(best, odd)
        yield from _ways(best, odd)


def _told(calibration: Calibration, dtype: str, first: int | None) -> Chosen:
    """The choices on the sides of which is told."""
    return {
        side: chosen_square(calibration, dtype, side) for side in [s for s in SHOWN if s >= (first or s + 1)][:MOST]
    }


def vendors_name(calibration: Calibration) -> str:
    return "cuBLAS" if calibration.batches else "NumPy's product"


def _speedups(best: Chosen) -> str:
    return by_sides({side: f"{1 / found.time:.2f}" for side, found in best.items()})


def by_sides(texts: Mapping[Any, str]) -> str:
    """What holds for which sides: `1.5 at 1024, 2 at 2048 to 8192`."""
    runs = [(text, [side for side, _ in alike]) for text, alike in groupby(texts.items(), key=lambda x: x[1])]
    return ", ".join(f"{text} at {sides[0]}{f' to {sides[-1]}' if len(sides) > 1 else ''}" for text, sides in runs)


def _costs(best: Chosen, odd: Chosen) -> Iterator[tuple[str, str]]:
    """The expected error and the workspace of those that are told of."""
    yield "cost", f"expected error, times the usual one (max_error_growth= limits it): {_errors(best or odd)};"
    if best and odd:
        yield "", f"on odd sides {_errors(odd)};"
    memory = by_sides({side: _gibibytes(found.workspace) for side, found in (best or odd).items()})
    yield "", f"memory beside the operands, where there is so much (workspace= limits it): {memory}"


def _errors(found: Chosen) -> str:
    growths = {side: x.error_growth for side, x in found.items()}
    return by_sides({side: spelled_growth(x) for side, x in growths.items()})


def spelled_growth(growth: float) -> str:
    """An error as a multiple of the usual one."""
    return f"{growth:.1f}" if growth >= 0.1 else f"{growth:.1g}"


def _ways(best: Chosen, odd: Chosen) -> Iterator[tuple[str, str]]:
    """The plans, from which of these sides on, and what their leaves are."""
    runs = [
        (f"{where}{sides[0]}" if len(sides) == 1 else f"{where}{sides[0]} to {sides[-1]}", plan)
        for where, some in (("", best), ("odd, ", odd))
        for plan, sides in _runs(some)
    ]
    yield from (("" if i else "plans", f"{where}: {plan}") for i, (where, plan) in enumerate(runs))
    leaves = dict.fromkeys(plan.leaf_use.leaf for _, plan in runs if plan.leaf != VENDOR.leaf)
    yield from (("", f"({leaf.name} is {leaf.meaning})") for leaf in leaves)


def _runs(best: Chosen) -> Iterator[tuple[Plan, list[int]]]:
    """Each plan, with the sides one after the other for which it is chosen."""
    for plan, alike in groupby(best.items(), key=lambda x: x[1].plan):
        yield plan, [side for side, _ in alike]


def gains_from(calibration: Calibration, dtype: str) -> int | None:
    """The side from which on the model leaves squares to the vendor no more, to 5 %, if their rows are aligned; None if
    it never does."""
    left = [side for side in SIDES if chosen_square(calibration, dtype, side).plan == VENDOR]
    if not left:
        return SIDES[0]
    if left[-1] == SIDES[-1]:
        return None
    low, high = left[-1], SIDES[SIDES.index(left[-1]) + 1]
    while high > CLOSE * low:
        middle = (low + high) // 2 // ROW * ROW
        low, high = (middle, high) if chosen_square(calibration, dtype, middle).plan == VENDOR else (low, middle)
    return high


def odd_gains(calibration: Calibration, dtype: str) -> Chosen:
    """The choices on odd sides, from the first that gains on, if they gain clearly more there than a side less."""
    found = {side: chosen_square(calibration, dtype, side) for side in ODD_SIDES}
    won = {side: best for side, best in found.items() if best.plan != VENDOR}
    beside = {side: chosen_square(calibration, dtype, side - 1).time for side in won if side > LARGE}
    more = any(MORE * won[side].time < time for side, time in beside.items())
    return won if more else {}


def _gibibytes(count: int) -> str:
    found = count / 2**30
    return f"{found:.1f} GiB" if found < 10 else f"{found:.0f} GiB"


def chosen_square(calibration: Calibration, dtype: str, side: int) -> Candidate:
    """The model's choice for a square product, however much workspace it needs."""
    limits = Limits(1 << 62, usual_growth(calibration.batches))
    return choose(Problem(side, side, side, dtype), calibration, limits).best


LEGEND = (
    "How a plan is read: levels, of which each has fewer products done for more sums (strassen and winograd: seven in",
    "place of eight, ^2: twice; aligned: none, but rows are copied to where they begin evenly), and behind the last >",
    "who multiplies what is left (vendor: the library itself). fmm.explain(a, b) tells the same of one product.",
)


def told_plans(lines: Sequence[str]) -> Iterator[str]:
    """How plans are read, if these lines name some."""
    if any(" > " in line for line in lines):
        yield from LEGEND
