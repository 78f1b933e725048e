"""What a tuned model means to those who multiply: from which side on squares are faster, by what, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from fmm.perfmodel.calibration import Calibration
from fmm.tuner.findings.model_in_use import Answer, ModelInUse, answers_for, gains_from, odd_gains
from fmm.tuner.findings.parts import Part, Table, table_of
from fmm.tuner.findings.thresholds import ROUND

MOST = 4  # odd ones that are told of


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
