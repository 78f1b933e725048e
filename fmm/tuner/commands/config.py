"""fmm-tune show | validate | export | merge: configs read, checked, turned into tables and put together."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from fmm.config import files, schema, store
from fmm.config.identity import Identity
from fmm.config.schema import ConfigError, Entry, Raw
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.tuner.commands.described import described
from fmm.tuner.commands.options import add_json
from fmm.tuner.commands.tune import output_path, trials_path
from fmm.tuner.fit import cached_work, formula_seconds
from fmm.tuner.trials import Trial, Trials


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    show = commands.add_parser("show", help="print what a config says of each device and type")
    _takes_config(show)
    add_json(show, "the sections as JSON")
    show.set_defaults(run=one_line_errors(_show))
    validate = commands.add_parser("validate", help="check a config to the last field")
    _takes_config(validate)
    validate.set_defaults(run=one_line_errors(_validate))
    export = commands.add_parser("export", help="print certified entries, or all trials, as CSV")
    _takes_config(export)
    export.add_argument("--csv", action="store_true", help="CSV (the only form)")
    export.add_argument("--trials", action="store_true", help="every sample, beside the model's prediction of it")
    export.set_defaults(run=one_line_errors(_export))
    merge = commands.add_parser("merge", help="put the sections of other configs into one")
    merge.add_argument("sources", nargs="+", type=Path, metavar="CONFIG")
    merge.add_argument("--into", type=Path, metavar="PATH", help="the config to write (the one that fmm reads)")
    merge.set_defaults(run=one_line_errors(_merge))


def _takes_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="(the one that fmm reads)")


def one_line_errors(run: Any) -> Any:
    """One line and exit code 1 for whatever is wrong with a file."""

    def run_guarded(options: argparse.Namespace) -> int:
        try:
            return int(run(options) or 0)
        except BrokenPipeError:
            raise  # who reads has read enough
        except (ConfigError, OSError, RuntimeError) as error:
            print(f"fmm-tune: {error}", file=sys.stderr)
            return 1

    return run_guarded


def config_sections(path: Path) -> Iterator[tuple[str, str, Raw]]:
    """Device, type and raw section of everything in a config."""
    if not path.exists():
        raise ConfigError(f"{path}: there is no config; `fmm-tune` writes one")
    try:
        devices = files.read_config(path)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    for key, types in devices.items():
        for dtype, raw in types.items():
            yield key, dtype, raw


def checked_fully(key: str, dtype: str, raw: Raw) -> schema.Tuned:
    """A section with every field and every plan checked."""
    found = schema.checked_section(raw, f"{key}.{dtype}", Identity(key, key), dtype)
    for entry in found.entries.values():
        try:
            Plan.parse(entry.plan)
        except PlanError as error:
            raise ConfigError(f"{key}.{dtype}, entry {entry.size}: {error}") from None
    return found


def _path(options: argparse.Namespace) -> Path:
    return output_path(options.config)


def _show(options: argparse.Namespace) -> None:
    found = list(config_sections(_path(options)))
    if options.json:
        print(json.dumps([{"device": key, "dtype": dtype, **raw} for key, dtype, raw in found], indent=1))
        return
    for key, dtype, raw in found:
        checked_fully(key, dtype, raw)
        conditions = raw["conditions"] if isinstance(raw["conditions"], dict) else {}
        print(f"{key}, {dtype} ({conditions.get('device', 'unknown')}; {_tuned_how(raw)})")
        print("\n".join(described(raw)))


def _tuned_how(raw: Raw) -> str:
    tuned = raw["tuned"] if isinstance(raw["tuned"], dict) else {}
    return f"{tuned.get('effort', 'measured online')}, {str(tuned.get('at', ''))[:10]}".strip(", ")


def _validate(options: argparse.Namespace) -> int:
    path, bad = _path(options), 0
    for key, dtype, raw in config_sections(path):
        try:
            found = checked_fully(key, dtype, raw)
        except ConfigError as error:
            print(f"fmm-tune validate: {path}: {error}", file=sys.stderr)
            bad = 1
        else:
            print(f"{key}, {dtype}: valid, {len(found.entries)} entries")
    return bad


def _export(options: argparse.Namespace) -> None:
    path = _path(options)
    rows = list(_trial_rows(path) if options.trials else _entry_rows(path))  # or nothing, where something is wrong
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows(rows)


def _entry_rows(path: Path) -> Iterator[list[object]]:
    names = [f.name for f in fields(Entry) if f.name != "size"]
    yield ["device", "dtype", "m", "k", "n", *names]
    for key, dtype, raw in config_sections(path):
        for entry in checked_fully(key, dtype, raw).entries.values():
            values = asdict(entry)
            yield [key, dtype, *entry.size, *(values[name] for name in names)]


def _trial_rows(path: Path) -> Iterator[list[object]]:
    """Every sample with the prediction of the config's calibration, where there is one."""
    known = {(key, dtype): checked_fully(key, dtype, raw).calibration for key, dtype, raw in config_sections(path)}
    names = [f.name for f in fields(Trial) if f.name not in ("size", "run")]
    yield ["run", "device", "m", "k", "n", *names, "predicted"]
    for tuning in Trials(trials_path(path)).tunings():
        for t in tuning.trials:
            calibration = known.get((tuning.header.device, t.dtype))
            seconds = None
            if calibration is not None:
                seconds = formula_seconds(t.what, t.problem, cached_work(t.what.plan, t.problem), calibration)
            yield [t.run, tuning.header.device, *t.size, *(getattr(t, name) for name in names), seconds]


def _merge(options: argparse.Namespace) -> None:
    into = output_path(options.into)
    for source in (output_path(given) if given.is_dir() else given for given in options.sources):
        for key, dtype, raw in config_sections(source):
            checked_fully(key, dtype, raw)
            store.merge_section(into, key, dtype, raw)
    print(f"merged into {into}")
