"""fmm-tune conclude: a config made anew of the trials beside it, by the rules of today; nothing is measured.

For a config of an earlier fmm: what it measured is worth as much as ever, but its model has other terms, or its
thresholds meant something else.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fmm.config import files, store
from fmm.config.identity import Identity
from fmm.config.schema import TAUS, ConfigError, Entry, Raw, Thresholds, Tuned, read_thresholds
from fmm.hardware.datasheets import device
from fmm.perfmodel.default_calibration import cpu_calibration, with_concurrent_products
from fmm.perfmodel.papers.huang_blocks import datasheet_chip
from fmm.tuner.commands.config_file import (
    add_json,
    add_output,
    by_device,
    checked_fully,
    one_line_errors,
    some_sections,
    takes_config,
)
from fmm.tuner.devices.simulated import RecordedDevice
from fmm.tuner.findings.conclude import concluded_section, in_rounds_of_their_own, sure_thresholds, trials_that_count
from fmm.tuner.findings.described import entry_size, of_an_earlier_fmm
from fmm.tuner.findings.model_in_use import ModelInUse, device_name, guess_of, model_in_use
from fmm.tuner.findings.summary import TypeInShort
from fmm.tuner.findings.threshold_words import spelled
from fmm.tuner.fit.blocks import Blocks, chosen_strategies, fitted_blocks
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import Trial, Trials, Tuning, first_look_before, tuning_of
from fmm.tuner.tune import output_path, trials_path


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("conclude", help="make a config anew of its trials, by the rules of today")
    takes_config(parser)
    parts = parser.add_mutually_exclusive_group()
    only = "leave the model as it is, and make of it and the trials the thresholds alone"
    parts.add_argument("--thresholds", action="store_true", help=only)
    tiles = "leave all else as it is, and say alone which tiles our own kernel takes, and how well their model predicts"
    parts.add_argument("--blocks", action="store_true", help=tiles)
    add_output(parser, "the config to write (the same)")
    add_json(parser, "what changed as JSON")
    parser.set_defaults(run=one_line_errors(run))


def run(options: argparse.Namespace) -> int:
    """Write every section of which there are trials, and say what that changed; exit code 1 if there are none of
    some."""
    path = output_path(options.config)
    made = with_thresholds if options.thresholds else with_blocks if options.blocks else concluded
    into = path if options.output is None else output_path(options.output)
    ends = list(_ends(path, into, made, options.json))
    beside = _trials_beside(path, into)
    print(json.dumps([end.fields for end in ends], indent=1) if options.json else f"written to {into}{beside}")
    return int(any(end.section is None for end in ends))


def _ends(path: Path, into: Path, made: Maker, quiet: bool) -> Iterator[End]:
    """Of each section in turn, written and told."""
    tunings = Trials(trials_path(path)).tunings()
    for key, types in by_device(some_sections(path)).items():
        after = dict(types)
        for dtype, raw in types.items():
            checked, tuning = checked_fully(key, dtype, raw), tuning_of(tunings, key, dtype, raw)
            first = first_look_before(tunings, tuning.header) if tuning else ()
            found = made(Recorded(key, dtype, raw, checked, tuning, first)) if tuning else None
            end = End(key, dtype, len(tuning.trials) if tuning else 0, None)
            if found is not None:
                store.merge_section(into, key, dtype, found)
                after[dtype] = written = files.read_config(into)[key][dtype]  # with entries that were there already
                changes = section_changes(key, dtype, types, after)
                end = replace(end, section=written, changes=changes, others=other_fields(raw, written))
            if not quiet:
                print("\n".join(end.lines(path)))
            yield end


@dataclass(frozen=True)
class End:
    """What was concluded of a section, None: nothing; and what that changed."""

    key: str
    dtype: str
    samples: int
    section: Raw
    changes: Sequence[Change] = ()
    others: Sequence[str] = ()  # fields that differ, whatever of them is told

    def lines(self, path: Path) -> list[str]:
        """As they are printed."""
        name = f"{self.key}, {self.dtype}"
        if self.section is None:
            return [f"{name}: left as it is: no trials of it are beside {path}"]
        told = (f"  {line}" for line in told_changes(self.changes, self.others))
        return [f"{name}: concluded from {self.samples} samples{_doubted(self.section)}", *told]

    @property
    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        found = {"device": self.key, "dtype": self.dtype, "samples": self.samples, "written": self.section is not None}
        doubts = (self.section or {}).get("doubts") or []
        return {
            **found,
            "doubts": doubts,
            "changes": [change.fields for change in self.changes],
            "other_changes": list(self.others),
        }


def _trials_beside(path: Path, into: Path) -> str:
    """The trials are copied into another folder that has none, for export and report read them there; what was done."""
    kept, own = Trials(trials_path(path)).files, Trials(trials_path(into))
    if into.resolve().parent == path.resolve().parent:
        return ""
    if own.files:
        return f"; the trials beside it are not these, which are in {path.parent}"
    for file in kept if into.parent.is_dir() else ():
        shutil.copyfile(file, into.with_name(file.name))
    return ", with the trials beside it" if own.files else ""


def _doubted(section: Mapping[str, Any]) -> str:
    doubts = section.get("doubts")
    return f"; not used: {doubts[0]}" if doubts else ""


@dataclass(frozen=True)
class Recorded:
    """A section of a config, and the trials that led to it."""

    key: str
    dtype: str
    raw: Raw
    tuned: Tuned
    tuning: Tuning
    first_look: tuple[Trial, ...]  # that came before it

    @property
    def device(self) -> RecordedDevice:
        """ConfigError if what was believed of it before the tuning cannot be told."""
        header, name = self.tuning.header, device_name(self.key, self.raw)
        identity, known = Identity(self.key, name, header.versions), self.tuned.calibration
        if (guess := guess_of(self.key, name)) is not None:
            return RecordedDevice(identity, guess, header.conditions, datasheet_chip(device(guess.name)))
        if known is None or known.batches:
            raise ConfigError(f"{self.key}, {self.dtype}: {name} is in no datasheet table; tune it again")
        threads = int(header.conditions.get("threads") or self.key.rpartition("-")[2].rstrip("t"))
        return RecordedDevice(
            identity, with_concurrent_products(cpu_calibration(threads), known.lanes), header.conditions
        )

    @property
    def journal(self) -> Journal:
        """What was measured, for whoever concludes from it."""
        run, trials = self.tuning.header.run, self.tuning.trials
        return Journal(run, self.device, trials, live=False, first_look=self.first_look)


Maker = Callable[[Recorded], dict[str, Raw] | None]


def concluded(known: Recorded) -> dict[str, Raw] | None:
    """The section as it would be written today; None if too little was measured."""
    section = concluded_section(known.journal, known.dtype)
    if section is None:
        return None
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {**section, "conditions": known.raw["conditions"], "tuned": {**(known.raw["tuned"] or {}), "concluded": now}}


def with_thresholds(known: Recorded) -> dict[str, Raw] | None:
    """The section with the thresholds of its own model, beside what was measured."""
    if known.tuned.calibration is None:
        return None
    journal, dtype = known.journal, known.dtype
    _, strategies = tiles_of(known)
    intervals, apart = known.raw["intervals"] or {}, in_rounds_of_their_own(journal, trials_that_count(journal, dtype))
    found = sure_thresholds(known.tuned.calibration, dtype, intervals, apart, strategies)
    return {**known.raw, "thresholds": found.fields}


def with_blocks(known: Recorded) -> dict[str, Raw] | None:
    """The section with another block model and the tiles that it chooses, beside its own thresholds; None if it has
    none that are read today."""
    if read_thresholds(known.raw["thresholds"]) is None:
        return None
    found, strategies = tiles_of(known)
    named = {**known.raw["thresholds"], "block_strategy": strategies}
    return {**known.raw, "thresholds": named, "blocks": known.raw.get("blocks") if found is None else found.fields}


def tiles_of(known: Recorded) -> tuple[Blocks | None, dict[str, str]]:
    """What the trials say of the block model, if they do, and which tiles our own kernel is launched with."""
    chip = known.device.chip
    found = fitted_blocks((*known.first_look, *known.tuning.trials), chip)
    if found is None and chip is not None and known.tuned.fitted is not None:  # by another tuning
        chip = replace(chip, fitted=known.tuned.fitted)
    return found, chosen_strategies(known.dtype, chip, found)


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
    doubts = list(used.tuned.diagnostics)
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
