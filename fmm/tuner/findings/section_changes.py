"""What a section of a config says otherwise than an earlier one of the same type: margin, gain, thresholds, entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fmm.config.schema import TAUS, Entry, Raw, Thresholds
from fmm.tuner.findings.described import entry_size, of_an_earlier_fmm
from fmm.tuner.findings.model_in_use import ModelInUse, model_in_use
from fmm.tuner.findings.summary import TypeInShort
from fmm.tuner.findings.threshold_words import spelled

Sections = Mapping[str, Raw]  # of a device, by type
LEVELS = dict(zip(TAUS, ("one level", "two levels", "three levels"), strict=True))
NONE, EARLIER = "none", "of an earlier fmm"
# Fields of a section of which it is said only that they differ.
OTHERS = ("calibration", "intervals", "error", "thresholds", "blocks", "noise", "failed", "versions", "conditions")


@dataclass(frozen=True)
class Said:
    """A value as JSON has it, and as people read it."""

    value: Raw
    text: str


NOTHING = Said(None, NONE)


@dataclass(frozen=True)
class Change:
    """What was said of something before, and what is now."""

    name: str
    before: Said
    after: Said

    @property
    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"name": self.name, "before": self.before.value, "after": self.after.value}

    @property
    def line(self) -> str:
        return f"{self.name}: {self.before.text} -> {self.after.text}"


def section_changes(key: str, dtype: str, before: Sections, after: Sections) -> list[Change]:
    """What differs of a type, by all sections of the device before and after; first what a user notices."""
    then, now = (dict(_told(key, dtype, sections)) for sections in (before, after))
    names = dict.fromkeys((*then, *now))
    pairs = (Change(name, then.get(name, NOTHING), now.get(name, NOTHING)) for name in names)
    return [change for change in pairs if change.before.text != change.after.text]


def other_fields(before: Raw, after: Raw) -> list[str]:
    """The fields of a section that differ, whatever of them is told."""
    return [name for name in OTHERS if before.get(name) != after.get(name)]


def told_changes(changes: Sequence[Change], others: Sequence[str]) -> list[str]:
    """A line each; one that says so where nothing that is told has changed."""
    if changes:
        return [change.line for change in changes]
    return [f"unchanged, but for numbers of {', '.join(others)}" if others else "unchanged"]


def _told(key: str, dtype: str, sections: Sections) -> Iterator[tuple[str, Said]]:
    """Each thing that is compared, by its name."""
    raw, used = sections[dtype], model_in_use(key, dtype, sections)
    doubts = list(used.tuned.doubts)
    yield "not used, since", Said(doubts, "; ".join(doubts)) if doubts else NOTHING
    known = used.tuned.calibration
    yield "margin", NOTHING if known is None else Said(known.margin, f"{known.margin:.1%}")
    yield from _gains(dtype, used)
    yield from _thresholds(raw, used.tuned.thresholds)
    for entry in used.tuned.entries.values():
        yield f"entry {entry_size(entry)}", Said(f"{entry.plan}: {entry.text}", _entry_text(entry))


def _gains(dtype: str, used: ModelInUse) -> Iterator[tuple[str, Said]]:
    """As the table of `fmm-tune show` has them."""
    short = TypeInShort(dtype, used)
    _, start, gain, _ = short.cells
    yield "faster from a side of", Said(short.first, start)
    yield "by the model, times as fast", Said(short.large.speedup, gain) if short.large else NOTHING


def _thresholds(raw: Raw, found: Thresholds | None) -> Iterator[tuple[str, Said]]:
    lacks = Said(EARLIER, EARLIER) if of_an_earlier_fmm(raw["thresholds"]) else NOTHING
    for name in ("n1", *TAUS):
        label = f"{name}, {LEVELS[name]} from a side of" if name in LEVELS else f"{name}, one level by Equation 3"
        side = found.value(name) if found else None
        yield label, Said(side, spelled(name, side)) if found else lacks


def _entry_text(entry: Entry) -> str:
    aside = "" if entry.verified else ", set aside"
    return f"{entry.plan} ({entry.text}{aside})"
