"""What a tuned model means to those who multiply: from which side on squares are faster, by what, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import isfinite
from typing import Any

from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Candidate, Limits, choose, default_error_growth
from fmm.problem import Problem
from fmm.tuner.findings.model_in_use import Answer, ModelInUse, answer_for, answers_for
from fmm.tuner.findings.parts import Part, Table, table_of
from fmm.tuner.findings.thresholds import ROUND, holds_from

ODD_SIDES = tuple(2**i + 1 for i in range(9, 15))  # whose rows begin anywhere
LARGE = 4096  # from here on the two are compared: of smaller ones the last wave of tiles decides as much
MOST = 4  # odd ones that are told of
MORE = 1.25  # times as much gained: then odd sides are told of apart

Chosen = Mapping[int, Candidate]


def outcome(used: ModelInUse) -> Iterator[Part]:
    """From which side on squares are not left to the library; what fmm.matmul does on some sides, and what it costs."""
    known, dtype = used.calibration, used.tuned.dtype
    if known is None:
        return
    base, first = vendors_name(known), gains_from(known, dtype)
    odd = list(odd_gains(known, dtype)) if known.batches else []
    if first is None:
        yield "gain", f"On squares no plan is predicted to be faster than {base}, which multiplies them."
    else:
        yield "gain", f"On squares fmm.matmul is predicted to be faster than {base} from a side of about {first} on."
    if odd:
        yield "", f"On odd sides, where {base} is slow, it is from about {odd[0]} on."
    yield from _exceptions(used, first, base)
    sides = [side for side in ROUND if first is not None and side >= first] + odd[-MOST:]
    found = answers_for(used, sides)
    if told := [x for x in found if x.gains or x.entry]:
        yield "squares", answers_table(told, base)
        yield "", _what_the_columns_are(used, base)
        yield from _meanings(told)
    if short := [str(x.side) for x in found if x not in told]:
        yield "", f"At {', '.join(short)} A, B and C leave too little memory for a plan: there {base} multiplies."


def _exceptions(used: ModelInUse, first: int | None, base: str) -> Iterator[Part]:
    """Sides of which was measured something else than that sentence says."""
    sides = sorted(s[0] for op, s, _, lean in used.tuned.entries if len(set(s)) == 1 and op == "product" and not lean)
    found = [x for x in answers_for(used, dict.fromkeys(sides)) if x.entry]
    lost = [str(x.side) for x in found if first is not None and x.side >= first and not x.gains]
    won = [str(x.side) for x in found if (first is None or x.side < first) and x.gains]
    if lost:
        yield "", f"But measured, nothing was clearly faster at exactly {', '.join(lost)}: there {base} multiplies."
    if won:
        yield "", f"Measured, it is faster at exactly {', '.join(won)} too."


def answers_table(told: Sequence[Answer], base: str) -> Table:
    """What is done, a row a side."""
    head = "side", f"times as fast as {base}", "error", "memory", "plan"
    return table_of(head, (_answer_row(x) for x in told))


def _answer_row(x: Answer) -> tuple[str, ...]:
    gain = f"{x.speedup:.2f} {x.known}" if x.gains else f"1 {x.known}"
    return str(x.side), gain, spelled_growth(x.error_growth), spelled_gibibytes(x.workspace), str(x.plan)


def _what_the_columns_are(used: ModelInUse, base: str) -> str:
    room = "no more than half of what these leave free" if used.memory else "where less is free, a plan that fits runs"
    return f"(error: expected, as a multiple of that of {base}; memory: beside A, B and C, {room})"


def _meanings(told: Sequence[Answer]) -> Iterator[Part]:
    """What the leaves are that are not the library's."""
    leaves = dict.fromkeys(x.plan.leaf_use.leaf for x in told if not x.plan.leaf_use.leaf.of_library)
    yield from (("", f"({leaf.name}: {leaf.meaning})") for leaf in leaves)


def vendors_name(calibration: Calibration) -> str:
    return "cuBLAS" if calibration.batches else "NumPy's product"


def by_sides(texts: Mapping[Any, str]) -> str:
    """What holds for which sides: `1.5 at 1024, 2 at 2048 to 8192`."""
    runs = [(text, [side for side, _ in alike]) for text, alike in groupby(texts.items(), key=lambda x: x[1])]
    return ", ".join(f"{text} at {sides[0]}{f' to {sides[-1]}' if len(sides) > 1 else ''}" for text, sides in runs)


def spelled_growth(growth: float) -> str:
    """An error as a multiple of the usual one."""
    return f"{growth:.1f}" if growth >= 0.1 else f"{growth:.1g}"


def spelled_gibibytes(count: int) -> str:
    found = count / 2**30
    return f"{found:.1f} GiB" if found < 10 else f"{found:.0f} GiB"


def unmeasured_in_use(used: ModelInUse) -> list[str]:
    """The leaves whose rates are the datasheet's and by which a square that is told of is multiplied."""
    unmeasured = (*used.assumed, *used.left_out)
    if not unmeasured:
        return []
    met = {answer.plan.leaf_use.leaf.name for answer in answers_for(used, (*ROUND, *ODD_SIDES))}
    return [leaf for leaf in unmeasured if leaf in met]


def gains_from(calibration: Calibration, dtype: str) -> int | None:
    """The side from which on the model leaves squares to the vendor no more, if their rows are aligned; None if it
    never does."""
    first = holds_from(lambda side: chosen_square(calibration, dtype, side).plan != VENDOR)
    return int(first) if isfinite(first) else None


def odd_gains(calibration: Calibration, dtype: str) -> Chosen:
    """The choices on odd sides, from the first that gains on, if they gain clearly more there than a side less."""
    found = {side: chosen_square(calibration, dtype, side) for side in ODD_SIDES}
    won = {side: best for side, best in found.items() if best.plan != VENDOR}
    beside = {side: chosen_square(calibration, dtype, side - 1).time for side in won if side > LARGE}
    more = any(MORE * won[side].time < time for side, time in beside.items())
    return won if more else {}


def chosen_square(calibration: Calibration, dtype: str, side: int) -> Candidate:
    """The model's choice for a square product, however much workspace it needs."""
    limits = Limits(1 << 62, default_error_growth(calibration.batches))
    return choose(Problem(side, side, side, dtype), calibration, limits).best


def best_told(used: ModelInUse, first: int, side: int) -> Answer | None:
    """What is done on the larger of two sides, or, where that does not fit, on the largest round one that does."""
    fitting = [answer_for(used, x) for x in dict.fromkeys((max(first, side), *reversed(ROUND)))]
    return next((x for x in fitting if x and x.side >= first and x.gains), None)
