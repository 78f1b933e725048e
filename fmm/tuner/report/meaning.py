"""What the first table means, in two sentences, and what a reader must know beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fmm.tuner.findings.advice import tuning_advice
from fmm.tuner.findings.described import instead, not_measured
from fmm.tuner.findings.outcome import spelled_growth
from fmm.tuner.findings.summary import TypeInShort, most_gained
from fmm.tuner.report.case import Case
from fmm.tuner.report.overview import BEYOND, LEFT, MEASURED, Gain, won_by

NAMED = 3  # types of which each side is told; of more only the least and the largest


def meaning(
    gains: Sequence[Gain],
    starts: Mapping[str, int] | None = None,
    base: str = "the vendor's product",
    shorts: Sequence[TypeInShort] = (),
) -> str:
    """In two sentences: from which size, how much, as `fmm-tune show` says of the same types; at which error and
    workspace. `starts`: where the model takes plans first, which may be between the sides that are shown."""
    types = dict.fromkeys(gain.dtype for gain in gains)
    won = [gain for dtype in types for gain in won_by(gains, dtype)]
    if not won:
        return f"On this device {base} is the fastest at all sizes that were tried: fmm leaves all to it."
    first = {dtype: min(own, key=lambda g: g.side) for dtype in types if (own := won_by(won, dtype))}
    sides = {dtype: _start(gain, (starts or {}).get(dtype)) for dtype, gain in first.items()}
    shown = [gain for gain in gains if gain.kind != LEFT and gain.op == "product"]  # on odd sides too
    worst, largest = (max(shown, key=key) for key in (lambda g: g.error_growth, lambda g: g.workspace))
    known = any(gain.kind == MEASURED for gain in won)
    most = most_gained(shorts)
    room = f"{largest.workspace / 2**30:.1f} GiB of memory beside the operands ({largest.dtype}, {largest.side})"
    return (
        f"fmm.matmul is {'' if known else 'predicted to be '}faster than {base} on square matrices from a side of "
        f"about {_from(sides)}{', ' * bool(most)}{most}. On the sides of this table its error is expected to be at "
        f"most {spelled_growth(worst.error_growth)} times that of {base} ({worst.dtype}), and it takes up to {room}, "
        f"at other sides perhaps more, but never more than half of what is free unless told otherwise."
    )


def _start(first: Gain, modelled: int | None) -> int:
    """Where the model gains from on; the first side that is told of, where it never does, or is not asked."""
    return first.side if modelled is None else modelled


def _from(sides: Mapping[str, int]) -> str:
    """912 (float32), 3040 (float64) or 12784 (bfloat16) on; of many types only the least and the largest."""
    ordered = [f"{side} ({dtype})" for dtype, side in sorted(sides.items(), key=lambda x: x[1])]
    if len(ordered) > NAMED:
        return f"{ordered[0]} to {ordered[-1]} on, depending on the type"
    return " or ".join(filter(None, (", ".join(ordered[:-1]), ordered[-1]))) + " on"


def not_used(cases: Sequence[Case]) -> list[str]:
    """What is not used of a tuning, why, and what fmm does instead."""
    unused: dict[str, list[str]] = {}
    for case in cases:
        if case.tuned.diagnostics:
            unused.setdefault(case.tuned.diagnostics[0], []).append(case.dtype)
    said = [f"The tuned model of {', '.join(types)} is not used: {doubt}." for doubt, types in unused.items()]
    if unused:
        doubted = [case for case in cases if case.tuned.diagnostics]
        without = instead(doubted[0].tuned.identity, doubted[0].dtype)
        said += [f"Without it {without}.", tuning_advice(doubted[0].device, [case.dtype for case in doubted])]
    return said


def notes_of_cases(cases: Sequence[Case], gains: Sequence[Gain]) -> Iterator[str]:
    """What a reader of the table must know beside it: how far it is from what was measured."""
    beyond = [d for d in dict.fromkeys(g.dtype for g in gains) if any(g.kind == BEYOND for g in won_by(gains, d))]
    if beyond:
        yield f"In {', '.join(beyond)} nothing as large was measured as what is predicted to gain."
    same: dict[str, list[str]] = {}
    for case in cases:
        if case.used.left_out:
            same.setdefault("; ".join(not_measured(case.used)), []).append(case.dtype)
    yield from (f"In {', '.join(types)}, {text}." for text, types in same.items())
