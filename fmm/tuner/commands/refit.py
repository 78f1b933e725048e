"""fmm-tune --refit: compute the sections of a config again from the recorded trials, without measuring.

A newer version of fmm may compute another model from the same trials.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fmm.config import files, store
from fmm.config.identity import Identity
from fmm.config.schema import TAU_NAMES, ConfigError, Entry, JsonValue, Thresholds, Tuning, read_thresholds
from fmm.hardware.datasheets import datasheet_of
from fmm.perfmodel.default_calibration import cpu_calibration, with_concurrent_products
from fmm.perfmodel.papers.huang_blocks import datasheet_chip
from fmm.runtime.devices import calibration_from_datasheet
from fmm.tuner import tune
from fmm.tuner.commands.config_file import (
    check_section,
    group_sections_by_device,
    required_sections,
    with_one_line_errors,
)
from fmm.tuner.devices.simulated import RecordedDevice
from fmm.tuner.findings.conclude import (
    conclude_section,
    split_first_look_trials,
    thresholds_with_intervals,
    usable_trials,
)
from fmm.tuner.findings.model_in_use import ModelInUse, device_name, model_in_use
from fmm.tuner.findings.summary import NEVER_TEXT, TypeSummary, entry_size_text, threshold_text
from fmm.tuner.fit.blocks import BlockFit, fit_block_model, strategies_by_side
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import RecordedTuning, Trial, TrialFile, first_look_trials, tuning_of_section
from fmm.tuner.tune import output_path, path_argument, trials_path

REFIT_PARTS = "all", "thresholds", "blocks"
OPTIONS_OF_BOTH = "output", "json", "quiet"  # options of a tuning that a refit has too


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --refit and --refit-part to the options of `fmm-tune` without a command."""
    what = "fit CONFIG (the one that fmm reads) again from its trials; write it, or --output; measure nothing"
    parser.add_argument("--refit", nargs="?", type=path_argument, const=Path(), metavar="CONFIG", help=what)
    parts = "what to fit again: all, the thresholds of the present model, or the block model and its tiles"
    parser.add_argument("--refit-part", choices=REFIT_PARTS, help=parts)


@with_one_line_errors
def run_refit(options: argparse.Namespace) -> int:
    """Compute and write all sections, and print the changes; return exit code 1 if a section has too few trials.

    The exit code is 2 for an option of a tuning that a refit does not have, such as --dry-run.
    """
    if foreign := _tuning_options(options):
        message = f"--refit measures nothing and fits every type; leave out {', '.join(foreign)}"
        print(f"fmm-tune: {message}", file=sys.stderr)
        return 2
    path = output_path(None if options.refit == Path() else options.refit)
    functions = {"all": refit_section, "thresholds": refit_thresholds, "blocks": refit_block_model}
    refit = functions[options.refit_part or "all"]
    into = path if options.output is None else output_path(options.output)
    results = list(_write_results(path, into, refit, options.json or options.quiet))
    is_written = any(x.section is not None for x in results)
    where = f"written to {into}{_copy_trials(path, into)}" if is_written else "nothing was written"
    if options.json:
        print(json.dumps([x.json_fields for x in results], indent=1))
    elif not options.quiet:
        print(where)
    return int(any(x.section is None for x in results))


def _tuning_options(options: argparse.Namespace) -> list[str]:
    """Return the options on the command line, such as "--dtype", that a tuning has and a refit does not have."""
    parser = argparse.ArgumentParser()
    tune.add_options(parser)
    defaults = vars(parser.parse_args([]))
    return [
        f"--{name.replace('_', '-')}"
        for name, default in defaults.items()
        if name not in OPTIONS_OF_BOTH and getattr(options, name) != default
    ]


@dataclass(frozen=True)
class RecordedSection:
    """A section of a config, and the trials that produced the section."""

    key: str
    dtype: str
    raw: JsonValue
    tuned: Tuning
    tuning: RecordedTuning
    first_look: tuple[Trial, ...]

    @property
    def recorded_device(self) -> RecordedDevice:
        """Return the section's device with the model before the tuning; raise ConfigError if that model is unknown."""
        header, name = self.tuning.header, device_name(self.key, self.raw)
        identity, calibration = Identity(self.key, name, header.versions), self.tuned.calibration
        if (guess := calibration_from_datasheet(self.key, name)) is not None:
            return RecordedDevice(identity, guess, header.conditions, datasheet_chip(datasheet_of(guess.name)))
        if calibration is None or calibration.batches:
            raise ConfigError(f"{self.key}, {self.dtype}: there is no datasheet of {name}; tune it again")
        try:
            threads = int(header.conditions.get("threads") or self.key.rpartition("-")[2].rstrip("t"))
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(
                f"{self.key}, {self.dtype}: the trials have no number of threads; tune it again"
            ) from None
        start = with_concurrent_products(cpu_calibration(threads), calibration.lanes)
        return RecordedDevice(identity, start, header.conditions)

    @property
    def replaying_journal(self) -> Journal:
        """Return a journal that replays the recorded trials instead of measuring."""
        run, trials = self.tuning.header.run, self.tuning.trials
        return Journal(run, self.recorded_device, trials, is_live=False, first_look=self.first_look)


RefitFunction = Callable[[RecordedSection], "dict[str, JsonValue] | None"]


def refit_section(recorded: RecordedSection) -> dict[str, JsonValue] | None:
    """Return the section that this version of fmm computes from the trials; None if the trials are too few."""
    section = conclude_section(recorded.replaying_journal, recorded.dtype)
    if section is None:
        return None
    now = datetime.now(UTC).isoformat(timespec="seconds")
    tuned = {**(recorded.raw["tuned"] or {}), "concluded": now}
    return {**section, "conditions": recorded.raw["conditions"], "tuned": tuned}


def refit_thresholds(recorded: RecordedSection) -> dict[str, JsonValue] | None:
    """Return the section with thresholds that are computed again from its calibration; None without a calibration."""
    if recorded.tuned.calibration is None:
        return None
    journal, dtype = recorded.replaying_journal, recorded.dtype
    _, strategies = _fit_tile_sizes(recorded)
    intervals, looks = recorded.raw["intervals"] or {}, split_first_look_trials(journal, usable_trials(journal, dtype))
    found = thresholds_with_intervals(recorded.tuned.calibration, dtype, intervals, looks, strategies)
    return {**recorded.raw, "thresholds": found.json_fields}


def refit_block_model(recorded: RecordedSection) -> dict[str, JsonValue] | None:
    """Return the section with a new block model and new tile sizes; None if the section has no readable thresholds."""
    if read_thresholds(recorded.raw["thresholds"]) is None:
        return None
    found, strategies = _fit_tile_sizes(recorded)
    thresholds = {**recorded.raw["thresholds"], "block_strategy": strategies}
    blocks = recorded.raw.get("blocks") if found is None else found.json_fields
    return {**recorded.raw, "thresholds": thresholds, "blocks": blocks}


def _fit_tile_sizes(recorded: RecordedSection) -> tuple[BlockFit | None, dict[str, str]]:
    """Return the block model fitted to the trials, and the tile sizes of fmm's own kernel that this model selects.

    If the trials are too few for a fit, None is returned instead of the block model, and the present block model
    selects the tile sizes.
    """
    chip = recorded.recorded_device.chip
    found = fit_block_model((*recorded.first_look, *recorded.tuning.trials), chip)
    if found is None and chip is not None and recorded.tuned.fitted is not None:  # select tile sizes by the present fit
        chip = replace(chip, fitted=recorded.tuned.fitted, strategies=recorded.tuned.strategies)
    return found, strategies_by_side(recorded.dtype, chip, found)


# ---- writing sections, and describing their changes


@dataclass(frozen=True)
class RefitResult:
    """The result of a refit: the written section (None if nothing was written), and its changes."""

    key: str
    dtype: str
    samples: int
    section: JsonValue
    changes: Sequence[ValueChange] = ()
    others: Sequence[str] = ()  # names of the fields that differ between the old and the new section

    def result_lines(self, path: Path) -> list[str]:
        """Return the result as lines of text; `path` is the config that was read."""
        name = f"{self.key}, {self.dtype}"
        if self.section is None:
            return [f"{name}: unchanged, there are no trials of it beside {path}"]
        diagnostics = self.section.get("doubts")
        rejected = f"; rejected: {diagnostics[0]}" if diagnostics else ""
        return [f"{name}: fitted from {self.samples} samples{rejected}", *self._value_change_lines()]

    def _value_change_lines(self) -> list[str]:
        """Return a line of text for each change; without changes, one line `unchanged`, with the fields that differ."""
        if self.changes:
            return [f"  {change.change_text}" for change in self.changes]
        return [f"  unchanged except {', '.join(self.others)}" if self.others else "  unchanged"]

    @property
    def json_fields(self) -> dict[str, Any]:
        """Return the fields of the result for JSON."""
        return {
            "device": self.key,
            "dtype": self.dtype,
            "samples": self.samples,
            "written": self.section is not None,
            "doubts": (self.section or {}).get("doubts") or [],
            "changes": [change.json_fields for change in self.changes],
            "other_changes": list(self.others),
        }


def _write_results(path: Path, output: Path, refit: RefitFunction, quiet: bool) -> Iterator[RefitResult]:
    """Compute all sections of a config, and write them together; yield and, unless `quiet`, print each result.

    If a section cannot be computed, no section is written.
    """
    tunings, fitted = TrialFile(trials_path(path)).read_tunings(), list[tuple[RefitResult, JsonValue]]()
    devices = group_sections_by_device(required_sections(path))
    for key, types in devices.items():
        for dtype, raw in types.items():
            tuned, tuning = check_section(key, dtype, raw), tuning_of_section(tunings, key, dtype, raw)
            first = first_look_trials(tunings, tuning.header) if tuning else ()
            found = refit(RecordedSection(key, dtype, raw, tuned, tuning, first)) if tuning else None
            fitted.append((RefitResult(key, dtype, len(tuning.trials) if tuning else 0, found), raw))
    if new := [(x.key, x.dtype, x.section) for x, _ in fitted if x.section is not None]:
        store.merge_sections(output, new)
    # read the written sections, since merge_sections has added the certified entries of the old sections
    written = files.read_config(output) if new else {}
    for result, raw in fitted:
        if result.section is not None:
            before, section = devices[result.key], written[result.key][result.dtype]
            after = {**before, **{dtype: written[key][dtype] for key, dtype, _ in new if key == result.key}}
            changes = section_changes(result.key, result.dtype, before, after)
            result = replace(result, section=section, changes=changes, others=changed_fields(raw, section))
        if not quiet:
            print("\n".join(result.result_lines(path)))
        yield result


def _copy_trials(path: Path, output: Path) -> str:
    """Copy the trial files to the output config's folder, unless this folder has trials; return a text to print.

    The commands export and report read the trials in the folder of their config.
    """
    present, own = TrialFile(trials_path(path)).existing_files, TrialFile(trials_path(output))
    if output.resolve().parent == path.resolve().parent:
        return ""
    if own.existing_files:
        return f"; the trials beside it belong to another config, its own are in {path.parent}"
    for file in present if output.parent.is_dir() else ():
        shutil.copyfile(file, output.with_name(file.name))
    return ", with the trials beside it" if own.existing_files else ""


RawSections = Mapping[str, JsonValue]  # the unchecked sections of a device, by element type
TAU_LEVEL_TEXTS = dict(zip(TAU_NAMES, ("one level", "two levels", "three levels"), strict=True))
COMPARED_FIELDS = (
    "calibration",
    "intervals",
    "error",
    "thresholds",
    "blocks",
    "noise",
    "failed",
    "versions",
    "conditions",
)


@dataclass(frozen=True)
class ComparedValue:
    """A value of a section before or after a refit: as a JSON value, and as text."""

    value: JsonValue
    text: str


NO_VALUE = ComparedValue(None, "none")


@dataclass(frozen=True)
class ValueChange:
    """A named value of a section before and after the refit."""

    name: str
    before: ComparedValue
    after: ComparedValue

    @property
    def json_fields(self) -> dict[str, Any]:
        """Return the fields of the change for JSON."""
        return {"name": self.name, "before": self.before.value, "after": self.after.value}

    @property
    def change_text(self) -> str:
        """Return the change as a line of text."""
        return f"{self.name}: {self.before.text} -> {self.after.text}"


def section_changes(key: str, dtype: str, before: RawSections, after: RawSections) -> list[ValueChange]:
    """Return the changes of an element type's values between two versions of a device's sections.

    The first change says whether the tuning is rejected; the changes of the margin, the crossover side and the speedup
    follow.
    """
    then, now = (dict(_compared_values(key, dtype, sections)) for sections in (before, after))
    pairs = (
        ValueChange(name, then.get(name, NO_VALUE), now.get(name, NO_VALUE)) for name in dict.fromkeys((*then, *now))
    )
    return [change for change in pairs if change.before.text != change.after.text]


def changed_fields(before: JsonValue, after: JsonValue) -> list[str]:
    """Return the names of the compared fields that differ between two versions of a section."""
    return [name for name in COMPARED_FIELDS if before.get(name) != after.get(name)]


def _compared_values(key: str, dtype: str, sections: RawSections) -> Iterator[tuple[str, ComparedValue]]:
    """Yield (name, value) for each value that `section_changes` compares."""
    used = model_in_use(key, dtype, sections)
    diagnostics, known = list(used.tuned.diagnostics), used.tuned.calibration
    yield "rejected", ComparedValue(diagnostics, "; ".join(diagnostics)) if diagnostics else NO_VALUE
    yield "margin", NO_VALUE if known is None else ComparedValue(known.margin, f"{known.margin:.1%}")
    yield from _speedup_values(dtype, used)
    yield from _threshold_values(used.tuned.thresholds)
    for entry in used.tuned.entries.values():
        yield (
            f"entry {entry_size_text(entry)}",
            ComparedValue(f"{entry.plan}: {entry.evidence_text}", _entry_text(entry)),
        )


def _speedup_values(dtype: str, used: ModelInUse) -> Iterator[tuple[str, ComparedValue]]:
    """Yield (name, value) for the smallest side with a gain, and for the speedup on a large square."""
    summary = TypeSummary(dtype, used)
    if used.calibration is None:
        yield from (("faster from side", NO_VALUE), ("speedup", NO_VALUE))
        return
    yield "faster from side", ComparedValue(summary.first_gain_side, str(summary.first_gain_side or NEVER_TEXT))
    best = summary.large_square_decision
    gain = f"{best.speedup:.2f} at {best.side} ({best.speedup_basis})" if best else ""
    yield "speedup", ComparedValue(best.speedup, gain) if best else NO_VALUE


def _threshold_values(found: Thresholds | None) -> Iterator[tuple[str, ComparedValue]]:
    """Yield (name, value) for the thresholds n1, tau1, tau2 and tau3."""
    for name in ("n1", *TAU_NAMES):
        side = found.threshold_value(name) if found else None
        label = (
            f"{name}, {TAU_LEVEL_TEXTS[name]} from side"
            if name in TAU_LEVEL_TEXTS
            else f"{name}, one level by Equation 3"
        )
        yield label, ComparedValue(side, threshold_text(name, side)) if found else NO_VALUE


def _entry_text(entry: Entry) -> str:
    """Return a certified entry as text: the plan, the speedup, and whether the entry is unverified."""
    return f"{entry.plan} ({entry.evidence_text}{'' if entry.verified else ', unverified'})"
