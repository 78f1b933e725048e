"""fmm-tune verify: check every field of a config; with --measure, time a few certified entries again.

After an update of BLAS or the GPU's driver, fmm.matmul skips the entries of a config. `fmm-tune verify --measure` times
the entries with the shortest products, for about a second per type. If every timed entry is still faster than the
vendor, all entries are marked as verified, otherwise as unverified.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from fmm.config import schema, store
from fmm.config.identity import model_rejection_reasons
from fmm.config.schema import ConfigError, Entry, JsonValue, read_thresholds
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem
from fmm.tuner.commands.config_file import (
    add_config_argument,
    add_output_option,
    check_section,
    read_config_sections,
    required_sections,
    with_one_line_errors,
)
from fmm.tuner.device_registry import UnknownDeviceError, select_devices
from fmm.tuner.devices.device import TimedRun, TunableDevice
from fmm.tuner.trials.journal import Journal, RoundLimits, median_paired_speedup
from fmm.tuner.tune import output_path

PLANNED_SECONDS = 1.0  # planned time for measuring the entries of one type, in seconds
VERIFY_ROUNDS = 3  # number of paired rounds for each entry
# An entry has lost its gain if its measured speedup is below 1, or below (low end of the recorded interval) - (recorded
# noise) - MAX_SPEEDUP_LOSS.
MAX_SPEEDUP_LOSS = 0.02


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `verify` to the commands of fmm-tune."""
    parser = commands.add_parser("verify", help="check a config to the last field, or time certified entries again")
    add_config_argument(parser)
    parser.add_argument(
        "--measure", action="store_true", help="time a few certified entries of a device here, a second"
    )
    parser.add_argument("--device", default=argparse.SUPPRESS, help="the device to measure on (with --measure)")
    add_output_option(parser, "the config to measure and update (with --measure; the one that fmm reads)")
    parser.set_defaults(run=with_one_line_errors(run_verify))


def run_verify(options: argparse.Namespace) -> int:
    """Check every section, or with --measure time entries of every section, and print a line for each section.

    Return exit code 1 if a section is damaged, if an entry has lost its gain, or if a model must be tuned again; return
    2 for an unknown device, else 0.
    """
    path = output_path(options.config or options.output)
    return _measure_config(path, options.device) if options.measure else _check_config(path)


def _check_config(path: Path) -> int:
    """Check every section of a config and print a line for each; return the exit code."""
    code = 0
    for key, dtype, raw in required_sections(path):
        try:
            found = check_section(key, dtype, raw)
        except ConfigError as error:
            print(f"fmm-tune verify: {path}: {error}", file=sys.stderr)
            code = 1
            continue
        unused = "".join(f"; rejected: {diagnostic}" for diagnostic in found.diagnostics)
        unreadable = raw["thresholds"] and read_thresholds(raw["thresholds"]) is None
        old = "; its thresholds are of another version: run `fmm-tune --refit`" if unreadable else ""
        print(f"{key}, {dtype}: valid, {len(found.entries)} entries{old}{unused}")
    return code


# ---- measuring entries again


def _measure_config(path: Path, device_name: str | None) -> int:
    """Time entries of each section of the selected devices; return the exit code."""
    try:
        devices = select_devices(device_name)
    except UnknownDeviceError as error:
        print(f"fmm-tune verify: {error}", file=sys.stderr)
        return 2
    sections, code = list(read_config_sections(path)), 0
    for device in devices:
        own = [(dtype, raw) for key, dtype, raw in sections if key == device.identity.key]
        if not own:
            raise ConfigError(f"{path} has no section of {device.identity.key}; `fmm-tune` measures one")
        for dtype, raw in own:
            code = max(code, _measure_section(path, device, dtype, raw))
    return code


def _measure_section(path: Path, device: TunableDevice, dtype: str, raw: JsonValue) -> int:
    """Time entries of one section, mark all its entries as verified or unverified, and return the exit code.

    If the versions now reject the section's model, nothing is measured or written: measured entries say nothing about
    the model.
    """
    key = device.identity.key
    try:
        found = schema.read_section(raw, f"{key}.{dtype}", device.identity, dtype)
    except ConfigError as error:
        print(f"fmm-tune verify: {path}: {error}", file=sys.stderr)
        return 1
    if reason := next(model_rejection_reasons(raw["versions"], device.identity.versions), ""):
        print(f"{key}, {dtype}: rejected: {reason}; tune again")
        return 1
    holds, result = measure_entries(Journal("canary", device), dtype, list(found.entries.values()))
    entries = [asdict(replace(entry, verified=holds)) for entry in found.entries.values()]
    store.merge_section(path, key, dtype, {**raw, "versions": dict(device.identity.versions), "entries": entries})
    print(f"{key}, {dtype}: {result}")
    return int(not holds)


def measure_entries(journal: Journal, dtype: str, entries: Sequence[Entry]) -> tuple[bool, str]:
    """Time the entries with the shortest products; return True if all are still faster, and the result as text."""
    fast = sorted((entry for entry in entries if entry.plan != "vendor"), key=lambda entry: entry.vendor_seconds)
    if not fast:
        return True, "verified; no entry has a gain to measure"
    left, tried = PLANNED_SECONDS, 0
    for entry in fast:
        cost = (entry.vendor_seconds + entry.seconds) * (VERIFY_ROUNDS + 1)
        if tried and cost > left:
            break
        run = TimedRun(Plan.parse(entry.plan))
        with journal.open_timed_problem("canary", Problem(*entry.size, dtype, op=entry.op)) as timed:
            samples = timed.sample_rounds([TimedRun(), run], RoundLimits(VERIFY_ROUNDS if cost <= left else 1))
        left, tried = left - cost, tried + 1
        gain = median_paired_speedup(samples, TimedRun(), run) if samples[run] else 0.0
        if gain < max(1.0, entry.low - entry.noise - MAX_SPEEDUP_LOSS):
            return False, f"unverified: {entry.size} has speedup {gain:.3f}, was {entry.evidence_text}; tune again"
    return True, f"verified; {tried} of {len(fast)} gains measured again"
