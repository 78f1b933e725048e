"""fmm-tune validate | export | merge: configs read, checked, turned into tables and put together."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fmm.config import files, schema, store
from fmm.config.identity import Identity
from fmm.config.schema import ConfigError, Raw, threshold_errors
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.tuner.commands import export
from fmm.tuner.findings.described import AGAIN, EARLIER, of_an_earlier_fmm
from fmm.tuner.findings.model_in_use import device_name
from fmm.tuner.trials.record import frame
from fmm.tuner.tune import output_path, trials_path


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    validate = commands.add_parser("validate", help="check a config to the last field")
    takes_config(validate)
    validate.set_defaults(run=one_line_errors(_validate))
    export = commands.add_parser("export", help="print certified entries, thresholds or all trials as CSV or JSON")
    takes_config(export)
    export.add_argument("--csv", action="store_true", help="CSV (what is printed without --json)")
    add_json(export, "a list of rows as JSON")
    what = export.add_mutually_exclusive_group()
    what.add_argument("--trials", action="store_true", help="every sample, beside the model's prediction of it")
    what.add_argument("--thresholds", action="store_true", help="alpha, pi, n1, tau1 and the others")
    export.set_defaults(run=one_line_errors(_export))
    merge = commands.add_parser("merge", help="put the sections of other configs into one")
    merge.add_argument("sources", nargs="+", type=Path, metavar="CONFIG")
    merge.add_argument("--replace", action="store_true", help="let them replace what was tuned there")
    add_output(merge, "the config to write (the one that fmm reads)")
    merge.set_defaults(run=one_line_errors(_merge))


def takes_config(parser: argparse.ArgumentParser) -> None:
    """The config as an argument, the one that fmm reads unless another is named."""
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


def by_device(sections: Iterable[tuple[str, str, Raw]]) -> dict[str, dict[str, Raw]]:
    """The same sections, those of each device by their types."""
    found: dict[str, dict[str, Raw]] = {}
    for key, dtype, raw in sections:
        found.setdefault(key, {})[dtype] = raw
    return found


def some_sections(path: Path) -> list[tuple[str, str, Raw]]:
    """The same; ConfigError if there is none."""
    found = list(config_sections(path))
    if not found:
        raise ConfigError(f"{path} says nothing of any device")
    return found


def checked_fully(key: str, dtype: str, raw: Raw) -> schema.Tuned:
    """A section with every field and every plan checked; what is wrong with its thresholds is said beside the rest."""
    where, wrong = f"{key}.{dtype}", list[ConfigError]()
    try:
        found = schema.read_section(raw, where, Identity(key, device_name(key, raw)), dtype)
        for entry in found.entries.values():
            _check_plan(entry, where)
    except ConfigError as error:
        wrong.append(error)
    wrong += threshold_errors(_told(raw, "thresholds"), f"{where}.thresholds")
    if wrong:
        raise ConfigError("; ".join(map(str, wrong)))
    return found


def _check_plan(entry: schema.Entry, where: str) -> None:
    try:
        Plan.parse(entry.plan)
    except PlanError as error:
        raise ConfigError(f"{where}, entry {entry.size}: {error}") from None


def _path(options: argparse.Namespace) -> Path:
    return output_path(options.config)


def tuned_how(raw: Raw) -> str:
    """With which effort and when, in words."""
    effort, when = (_told(_told(raw, "tuned"), name) for name in ("effort", "at"))
    how = "comes with fmm, not tuned here" if effort == "shipped" else effort or "measured online"
    return f"{how}, {str(when or '')[:10]}".strip(", ")


def _told(raw: Raw, name: str) -> Raw:
    return raw.get(name) if isinstance(raw, dict) else None


def _validate(options: argparse.Namespace) -> int:
    path, bad = _path(options), 0
    for key, dtype, raw in some_sections(path):
        try:
            found = checked_fully(key, dtype, raw)
        except ConfigError as error:
            print(f"fmm-tune validate: {path}: {error}", file=sys.stderr)
            bad = 1
        else:
            unused = "".join(f"; the model is not used: {doubt}" for doubt in found.diagnostics)
            old = f"; its thresholds are {EARLIER}: {AGAIN}" if of_an_earlier_fmm(raw["thresholds"]) else ""
            print(f"{key}, {dtype}: valid, {len(found.entries)} entries{old}{unused}")
    return bad


def _export(options: argparse.Namespace) -> int:
    path = _path(options)
    try:
        table = exported_table(path, "trials" if options.trials else "thresholds" if options.thresholds else "entries")
        if options.json:
            print(json.dumps(export.json_rows(table), indent=1))
        else:
            table.to_csv(sys.stdout, index=False, lineterminator="\n")
        if table.empty:
            print(f"fmm-tune export: {path} has no certified entries: all sizes are the model's", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(f"fmm-tune export: {error.name} is not installed; pip install 'fmm-tune[tune]'", file=sys.stderr)
        return 1
    return 0


def exported_table(path: Path, what: str = "entries") -> Any:
    """A config's entries, its "thresholds", or the "trials" beside it, as a pandas DataFrame."""
    sections = {(key, dtype): checked_fully(key, dtype, raw) for key, dtype, raw in some_sections(path)}
    if what == "trials":
        if (trials := frame(trials_path(path))).empty:
            raise ConfigError(f"there are no trials beside {path}")
        return export.with_predictions(trials, sections)
    if what == "entries":
        return export.entries_table(sections)
    if not any(found.thresholds for found in sections.values()):
        raise ConfigError(f"{path} has no thresholds that this fmm knows; {AGAIN}")
    return export.thresholds_table(sections)


# ---- merge


@dataclass(frozen=True)
class Source:
    """A section to be merged, and where it is from."""

    path: Path
    key: str
    dtype: str
    raw: Raw

    def where(self, path: Path) -> str:
        return f"{path} has {self.key}, {self.dtype}"

    def into(self, there: Raw) -> tuple[str, Raw]:
        """What happens to what is there, in words, and the section to write. Entries alone are added to any model."""
        if there is None:
            return "added", self.raw
        if self.raw["calibration"] is None:
            same = there["versions"] == self.raw["versions"]
            entries = [{**entry, "verified": entry.get("verified", True) and same} for entry in self.raw["entries"]]
            return "entries added", {**there, "entries": entries}
        if _told(there, "calibration") in (None, self.raw["calibration"]):
            return "added", self.raw
        return f"replaced what was tuned {tuned_how(there)}", self.raw


def _merge(options: argparse.Namespace) -> None:
    """All that is given, or nothing if something is wrong with any of it."""
    into = output_path(options.output)
    sources = [
        Source(path, key, dtype, raw)
        for path in (output_path(given) if given.is_dir() else given for given in options.sources)
        for key, dtype, raw in some_sections(path)
    ]
    known = {(key, dtype): (into, raw) for key, dtype, raw in config_sections(into)} if into.exists() else {}
    steps = []
    for source in sources:
        checked_fully(source.key, source.dtype, source.raw)
        path, there = known.get((source.key, source.dtype), (into, None))
        done, section = source.into(there)
        if done.startswith("replaced") and not options.replace:
            raise ConfigError(
                f"{source.where(path)} tuned already, otherwise than {source.path}; --replace takes the latter's"
            )
        known[source.key, source.dtype] = source.path, section
        steps.append((source, done, section))
    for source, done, section in steps:
        store.merge_section(into, source.key, source.dtype, section)
        print(f"{source.key}, {source.dtype}: {done}, from {source.path}")
    print(f"merged into {into}")


def add_json(parser: argparse._ActionsContainer, what: str = "JSON") -> None:
    """Without a default of a command's own, which would undo --json before the command."""
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=f"print {what}")


def add_output(parser: argparse._ActionsContainer, what: str, metavar: str = "PATH") -> None:
    """Where a command writes; likewise without a default. `--into`, as some commands once had it, is understood too."""
    add = partial(parser.add_argument, type=Path, default=argparse.SUPPRESS, metavar=metavar)
    add("--output", help=what)
    add("--into", dest="output", help=argparse.SUPPRESS)
