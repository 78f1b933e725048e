"""fmm-tune export: print the entries, thresholds or trials of a config as CSV, as JSON, or in formats of autotuners.

For notebooks, `export_table` returns the same tables as pandas DataFrames.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

from fmm.config.schema import ConfigError, Entry, JsonValue, ThresholdRange, Thresholds, Tuning
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem
from fmm.tuner.commands.autotuning_formats import t1_space_document, t4_results_document
from fmm.tuner.commands.config_file import (
    add_config_argument,
    add_json_option,
    check_section,
    required_sections,
    with_one_line_errors,
)
from fmm.tuner.devices.device import TimedRun, cached_plan_work, predicted_run_seconds
from fmm.tuner.findings.model_in_use import device_name
from fmm.tuner.trials.record import TrialFile, frame
from fmm.tuner.tune import output_path, trials_path

TunedSections = Mapping[tuple[str, str], Tuning]  # the checked config sections by (device key, element type)
ENTRY_COLUMNS = ["device", "dtype", "m", "k", "n", *(f.name for f in fields(Entry) if f.name != "size")]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `export` to the commands of fmm-tune."""
    parser = commands.add_parser(
        "export", help="print certified entries, thresholds or all trials as CSV, JSON, or for other autotuners"
    )
    add_config_argument(parser)
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--csv", action="store_true", help="CSV (the default without --json)")
    add_json_option(style, "a list of rows as JSON")
    what = "Kernel Tuner's formats: t4, the measured results; t1, the search space of one device and type"
    style.add_argument("--format", choices=("csv", "json", *EXPORT_DOCUMENTS), help=what)
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument("--trials", action="store_true", help="every sample, with the model's prediction")
    rows.add_argument("--thresholds", action="store_true", help="the thresholds: alpha, pi, n1, tau1 and others")
    # --device has no default in this parser, since a default would replace the KEY of `fmm-tune --device KEY export`.
    what = "only devices with keys that begin with this text, for example cpu or cuda-9.0"
    parser.add_argument("--device", metavar="KEY", default=argparse.SUPPRESS, help=what)
    what = "only these element types, separated by commas"
    parser.add_argument("--dtype", metavar="TYPES", default=argparse.SUPPRESS, help=what)
    parser.set_defaults(run=with_one_line_errors(run_export))


def run_export(options: argparse.Namespace) -> int:
    """Print the table or document that the options select; return exit code 1 if pandas is not installed, else 0."""
    path = output_path(options.config)
    wanted = SectionFilter(options.device or "", tuple(options.dtype.split(",")) if options.dtype else ())
    if options.format in EXPORT_DOCUMENTS:
        if options.thresholds:
            raise ConfigError(f"--thresholds is a table, not a part of {options.format}: --format csv or json")
        print(json.dumps(EXPORT_DOCUMENTS[options.format](path, wanted), indent=1))
        return 0
    what = "trials" if options.trials else "thresholds" if options.thresholds else "entries"
    try:
        table = export_table(path, what, wanted)
        if options.json or options.format == "json":
            print(json.dumps(table_rows_for_json(table), indent=1))
        else:
            table.to_csv(sys.stdout, index=False, lineterminator="\n")
        if table.empty:
            print(f"fmm-tune export: {path} has no certified entries{_who_decides(path, wanted)}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(f"fmm-tune export: {error.name} is not installed; pip install '.[tune]' in fmm's clone", file=sys.stderr)
        return 1
    return 0


def _who_decides(path: Path, wanted: SectionFilter) -> str:
    """Return a text that says how fmm decides without certified entries: by the models, unless one is not trusted."""
    sections = checked_sections(path, wanted)
    untrusted = [f"{key} {dtype}" for (key, dtype), found in sections.items() if found.trusted_calibration is None]
    if untrusted:
        return f"; fmm decides as without a tuning, since the model is rejected or missing: {', '.join(untrusted)}"
    return ": the model decides all sizes"


class SectionFilter(NamedTuple):
    """Selects sections to export by the beginning of the device key and by element types; empty values select all."""

    device: str = ""
    dtypes: tuple[str, ...] = ()

    def accepts(self, key: str, dtype: str) -> bool:
        return key.startswith(self.device) and (not self.dtypes or dtype in self.dtypes)


ALL_SECTIONS = SectionFilter()


def checked_sections(path: Path, wanted: SectionFilter) -> TunedSections:
    """Return the sections that the filter selects; raise ConfigError if no section is selected or one is damaged."""
    sections = required_sections(path)
    chosen = {
        (key, dtype): check_section(key, dtype, raw) for key, dtype, raw in sections if wanted.accepts(key, dtype)
    }
    if not chosen:
        valid = ", ".join(f"{key} {dtype}" for key, dtype, _ in sections)
        raise ConfigError(f"{path} has no such section; --device and --dtype select from: {valid}")
    return chosen


def missing_trials_error(path: Path, wanted: SectionFilter) -> ConfigError:
    return ConfigError(f"there are no {'trials' if wanted == ALL_SECTIONS else 'such trials'} beside {path}")


def trials_document(path: Path, wanted: SectionFilter = ALL_SECTIONS) -> dict[str, Any]:
    """Return the trials in the config's folder in T4, the autotuners' format for results.

    Raise ConfigError if the filter selects no trial.
    """
    tunings = [
        tuning
        for tuning in TrialFile(trials_path(path)).read_tunings()
        if tuning.trials and wanted.accepts(tuning.header.device, tuning.trials[0].dtype)
    ]
    if not tunings:
        raise missing_trials_error(path, wanted)
    return t4_results_document(tunings)


def search_space_document(path: Path, wanted: SectionFilter = ALL_SECTIONS) -> dict[str, Any]:
    """Return the search space of the one section that the filter selects, in T1, the autotuners' format."""
    sections = checked_sections(path, wanted)
    if len(sections) > 1:
        valid = ", ".join(f"{key} {dtype}" for key, dtype in sections)
        raise ConfigError(f"t1 describes one section; --device and --dtype select from: {valid}")
    ((key, dtype),) = sections
    (raw,) = (raw for name, other, raw in required_sections(path) if (name, other) == (key, dtype))
    return t1_space_document(key, device_name(key, raw), dtype)


EXPORT_DOCUMENTS: Mapping[str, Callable[[Path, SectionFilter], dict[str, Any]]] = {
    "t4": trials_document,
    "t1": search_space_document,
}


def export_table(path: Path, what: str = "entries", wanted: SectionFilter = ALL_SECTIONS) -> Any:
    """Return the "entries", "thresholds" or "trials" of a config as a pandas DataFrame.

    The trials are read from the file trials.jsonl in the config's folder.
    """
    sections = checked_sections(path, wanted)
    if what == "trials":
        trials = frame(trials_path(path))
        trials = trials[[wanted.accepts(row.device, row.dtype) for row in trials.itertuples()]]
        if trials.empty:
            raise missing_trials_error(path, wanted)
        return add_predictions(trials, sections)
    if what == "entries":
        return entries_table(sections)
    if not any(found.thresholds for found in sections.values()):
        raise ConfigError(f"{path} has no thresholds of this version; `fmm-tune --refit` writes them from the trials")
    return thresholds_table(sections)


def table_rows_for_json(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame for JSON; a missing cell becomes None.

    `DataFrame.to_json` is not used, because it rounds numbers to ten decimals.
    """
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict(orient="records")
    return rows


def entries_table(sections: TunedSections) -> Any:
    """Return a DataFrame with a row for each certified entry of these sections."""
    import pandas

    rows = []
    for (key, dtype), tuned in sections.items():
        for entry in tuned.entries.values():
            m, k, n = entry.size
            rows.append({"device": key, "dtype": dtype, "m": m, "k": k, "n": n, **asdict(entry)})
    return pandas.DataFrame(rows, columns=ENTRY_COLUMNS)


def thresholds_table(sections: TunedSections) -> Any:
    """Return a DataFrame with the papers' thresholds (alpha, n1, tau1 and others), a row for each section.

    tau1, tau2 and tau3 are ranges: each has a column for its value, for the low end and for the high end. Each 95 %
    interval has two columns, for its low and its high end.
    """
    import pandas

    rows = []
    for (key, dtype), tuned in sections.items():
        cells = dict(_threshold_cells(tuned.thresholds)) if tuned.thresholds else {}
        rows.append({"device": key, "dtype": dtype, **cells})
    return pandas.DataFrame(rows)


def _threshold_cells(found: Thresholds) -> Iterator[tuple[str, JsonValue]]:
    """Yield (column name, value) for each threshold, end of a range and end of an interval."""
    for name, value in vars(found).items():
        if isinstance(value, ThresholdRange):
            yield from ((name, value.value), (f"{name}_low", value.low), (f"{name}_high", value.high))
        elif not isinstance(value, Mapping):
            yield name, value
    for name, (low, high) in found.intervals.items():
        yield from ((f"{name}_95_low", low), (f"{name}_95_high", high))
    yield from ((f"{name}_without_emulation", side) for name, side in found.without_emulation.items())


def add_predictions(trials: Any, sections: TunedSections) -> Any:
    """Return the trials with a new column `predicted`: the seconds predicted by the calibration of their section.

    For a trial of a type without a calibration, `predicted` is empty.
    """
    calibrations = {key: found.calibration for key, found in sections.items()}

    def predicted_seconds(row: Any) -> float | None:
        calibration = calibrations.get((row.device, row.dtype))
        if calibration is None:
            return None
        run, problem = (
            TimedRun(Plan.parse(row.plan), row.part, row.twin),
            Problem(row.m, row.k, row.n, row.dtype, op=row.op),
        )
        return predicted_run_seconds(run, problem, cached_plan_work(run.plan, problem), calibration)

    return trials.assign(predicted=[predicted_seconds(row) for row in trials.itertuples()])
