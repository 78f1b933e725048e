"""Does fmm help on this device, and what is to be typed next? A line a type, for who reads no further."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fmm.config.schema import Entry
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.choose import default_error_growth
from fmm.tuner.findings.advice import TO_ITS_END, tuning_command
from fmm.tuner.findings.described import instead
from fmm.tuner.findings.model_in_use import Answer, ModelInUse, answers_for, best_told, gains_from, unmeasured_in_use
from fmm.tuner.findings.parts import table_of
from fmm.tuner.findings.thresholds import LEVELS, ROUND, chosen_from, finite

TIMED = "Timed were only the sizes that are listed under `measured` below; all others are the model's."
NOT_TIMED = "All sides are the model's: no square was timed and certified to gain."
LARGE = 16000  # the side of which a gain is told, or the first one where that is larger


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

    @cached_property
    def large(self) -> Answer | None:
        """What is done with a large square that gains."""
        return None if self.first is None else best_told(self.used, self.first, LARGE)

    @property
    def timed(self) -> Entry | None:
        """The certified square that gains the most."""
        gains = (entry for entry in _squares(self.used) if entry.plan != str(VENDOR))
        return max(gains, key=lambda entry: entry.speedup, default=None)

    @property
    def left_out(self) -> list[str]:
        """The leaves of chosen plans that go by the datasheet, though a tuning measures them."""
        return [leaf for leaf in unmeasured_in_use(self.used) if leaf in self.used.left_out]

    @property
    def cells(self) -> tuple[str, ...]:
        """Type; from which side on; on a large square, whether measured or predicted; the most that was measured."""
        known, best = self.used.calibration, self.large
        if known is None:
            start = "not used" if self.used.tuned.diagnostics else "no model"
        else:
            start = "nowhere" if self.first is None else f"about {self.first}"
        gain = f"{best.speedup:.2f} at {best.side}{' (measured)' * (best.entry is not None)}" if best else ""
        return self.dtype, start, gain, f"{self.timed.speedup:.2f} at {self.timed.size[0]}" if self.timed else ""

    @property
    def fields(self) -> dict[str, Any]:
        """What fmm.matmul does with squares, as JSON has it."""
        known = self.used.calibration
        sides = sorted({*ROUND, *(entry.size[0] for entry in _squares(self.used))})
        return {
            "faster_from": self.first,
            "levels_from": [finite(chosen_from(known, self.dtype, n)) for n in LEVELS] if known else None,
            "squares": [answer.fields for answer in answers_for(self.used, sides)],
        }


def _squares(used: ModelInUse) -> Iterator[Entry]:
    """The entries of square products by which fmm.matmul goes."""
    for entry in used.tuned.entries.values():
        if entry.op == "product" and len(set(entry.size)) == 1 and entry.verified and not entry.lean:
            yield entry


def most_gained(types: Sequence[TypeInShort]) -> str:
    """The most of that table in words, for the report: as timed, and by the model on a large square."""
    timed = [(x.timed.speedup, x.dtype, x.timed.size[0]) for x in types if x.timed]
    told = [(x.large.speedup, x.dtype, x.large.side) for x in types if x.large and not x.large.entry]
    kinds = ("timed up to", timed), ("by the model", told)
    most = [(how, *max(found)) for how, found in kinds if found]
    return ", ".join(f"{how} {gain:.2f} times as fast ({dtype}, {side})" for how, gain, dtype, side in most)


def in_short(types: Sequence[TypeInShort]) -> Iterator[str]:
    """A table of a device's types, and what must be known beside it."""
    base = "NumPy's product" if all(x.used.on_cpu for x in types) else "cuBLAS"
    timed = any(x.timed for x in types)
    head = "type", "faster from a side of", "by the model", "most that was timed"
    yield f"How many times as fast fmm.matmul is as {base} on square matrices, by their side (rows):"
    yield from (f"  {line}" for line in table_of(head[: 3 + timed], (x.cells[: 3 + timed] for x in types)).lines)
    if any(x.large for x in types):
        yield f"  By the model: at {LARGE}, or at the first side that gains."
        yield f"  {TIMED if timed else NOT_TIMED}"
    yield from _notes(types)


def _notes(types: Sequence[TypeInShort]) -> Iterator[str]:
    """Why the columns differ, and what is done where a tuning is not used."""
    partial = [x for x in types if x.large and x.left_out]
    if partial:
        leaves = dict.fromkeys(leaf.partition(" ")[0] for x in partial for leaf in x.left_out)
        yield f"{_names(partial)}: what is predicted is by {' and '.join(leaves)}, at the datasheet's speed."
        if any(x.timed for x in partial):
            yield "  What was measured is without that."
    for doubt, some in _alike(types).items():
        yield f"{_names(some)}: not used. {doubt[:1].upper()}{doubt[1:]}."
        yield f"  What fmm.matmul does now: {instead(some[0].used.tuned.identity, some[0].dtype)}."


def _alike(types: Sequence[TypeInShort]) -> dict[str, list[TypeInShort]]:
    """Those whose tuning is not used, by the first reason."""
    found: dict[str, list[TypeInShort]] = {}
    for x in types:
        if x.used.tuned.diagnostics:
            found.setdefault(x.used.tuned.diagnostics[0], []).append(x)
    return found


def _names(types: Sequence[TypeInShort]) -> str:
    return ", ".join(x.dtype for x in types)


def next_steps(
    key: str, types: Sequence[TypeInShort], in_force: bool, name: str, short: Sequence[str] = ()
) -> Iterator[str]:
    """What to type: for each kind of lack a command, then what shows more, and what limits; `name` is the config's,
    `short` are types of which a longer tuning measures more."""
    unused = [x.dtype for x in types if x.used.tuned.diagnostics]
    partial = [x.dtype for x in types if x.left_out]
    left = {
        TO_ITS_END: unused,
        "measures what goes by the datasheet so far": partial,
        "goes on: measures more than this short tuning": [x for x in short if x not in (*unused, *partial)],
    }
    if not in_force:
        yield f"fmm.matmul does not read this config, unless FMM_CONFIG={name} names it."
    elif not any(left.values()):
        yield "Nothing is left to do: fmm.matmul reads this config by itself."
    where = "" if in_force else f" {name}"
    commands = [(tuning_command(key, dtypes), why) for why, dtypes in left.items() if dtypes]
    commands += [(f"fmm-tune report{where}", "all this as a page with pictures")]
    if in_force and types:
        name = "cpu" if key.startswith("cpu") else key
        asked = f"fmm-tune predict 5000 3000 5000 --device {name} --dtype {types[0].dtype}"
        commands += [(asked, "what is done with one product")]
    growth = default_error_growth(not key.startswith("cpu"))
    limits = f"limits error and memory (usual: {growth:g} times the library's, half of the free)"
    commands += [("fmm.matmul(a, b, max_error_growth=4, workspace=2**30)", limits)]
    yield "What to type next:"
    width = max(len(command) for command, _ in commands)
    yield from (f"  {command:{width}}  {why}" for command, why in commands)
