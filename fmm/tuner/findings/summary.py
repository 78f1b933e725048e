"""Does fmm help on this device, and what is to be done next? A line a type, for who reads no further."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from fmm.config.schema import Entry
from fmm.kernels.plans.plan import VENDOR
from fmm.tuner.findings.model_in_use import ModelInUse
from fmm.tuner.findings.outcome import chosen_square, gains_from, vendors_name

SHOWN = 16384  # the side of which a gain is told, or the first one where that is larger


@dataclass(frozen=True)
class TypeInShort:
    """One element type of a device."""

    dtype: str
    used: ModelInUse

    @cached_property
    def first(self) -> int | None:
        """The side from which on squares gain by the model."""
        known = self.used.calibration
        return None if known is None else gains_from(known, self.dtype)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Type, from which side on, how much by the model, how much as measured."""
        known, measured = self.used.calibration, _measured(self.used)
        if known is None:
            return self.dtype, "not used" if self.used.tuned.doubts else "no model", "", measured
        if self.first is None:
            return self.dtype, "nowhere", "", measured
        side = max(SHOWN, self.first)
        best = chosen_square(known, self.dtype, side)
        return self.dtype, str(self.first), f"{1 / best.time:.2f} at {side}" if best.plan != VENDOR else "", measured


def _measured(used: ModelInUse) -> str:
    """The largest certified speedup of a square."""
    squares = [e for e in used.tuned.entries.values() if _gains(e)]
    best = max(squares, key=lambda e: e.speedup, default=None)
    return f"{best.speedup:.2f} at {best.size[0]}" if best else ""


def _gains(entry: Entry) -> bool:
    """Is it of a square product, and a plan's?"""
    square = entry.op == "product" and len(set(entry.size)) == 1
    return square and entry.verified and not entry.lean and entry.plan != str(VENDOR)


def in_short(types: Sequence[TypeInShort]) -> Iterator[str]:
    """A table of a device's types."""
    known = next((x.used.tuned.calibration for x in types if x.used.tuned.calibration), None)
    base = vendors_name(known) if known else "the library"
    head = "type", "faster from a side of", "times as fast, predicted", "measured"
    rows = [head, *(x.cells for x in types)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    yield f"Square products by fmm.matmul, beside {base}:"
    yield from ("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def next_steps(key: str, types: Sequence[TypeInShort], in_force: bool, name: str) -> Iterator[str]:
    """What is left to do: for each kind of lack one line, or that there is nothing; `name` is the config's."""
    device = "cpu" if key.startswith("cpu") else "0"
    unused, partial = ([x.dtype for x in types if lacks(x.used)] for lacks in (_unused, _partial))
    again = {"when nothing else runs on the device": unused, "to measure what goes by the datasheet so far": partial}
    for why, dtypes in again.items():
        if dtypes:
            yield f"Next: `fmm-tune --device {device} --dtype {','.join(dtypes)}`, {why}."
    if not in_force:
        yield f"fmm.matmul does not read this config, unless FMM_CONFIG={name} names it."
    elif not unused and not partial:
        yield "Nothing is left to do: fmm.matmul reads this config by itself."


def _unused(used: ModelInUse) -> bool:
    return bool(used.tuned.doubts)


def _partial(used: ModelInUse) -> bool:
    return bool(used.left_out)
