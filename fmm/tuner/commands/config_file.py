"""Functions that several commands of fmm-tune use: options, reading and checking config sections, one-line errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fmm.config import files, schema
from fmm.config.identity import Identity
from fmm.config.reader import check_text
from fmm.config.reported_fields import check_reported_fields
from fmm.config.schema import ConfigError, JsonValue, threshold_errors
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.tuner.findings.model_in_use import device_name
from fmm.tuner.tune import path_argument

# Users may write the options --json and --output before or after the command's name. In the parser of a command, --json
# and --output have no default: a default would replace the value that a user writes before the command's name.


def add_json_option(parser: argparse._ActionsContainer, what: str = "JSON") -> None:
    """Add the option --json to a parser; the option's help text is "print" followed by `what`."""
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=f"print {what}")


def add_output_option(parser: argparse._ActionsContainer, what: str, metavar: str = "PATH") -> None:
    """Add the option --output, which names the file or folder that a command writes."""
    parser.add_argument("--output", type=path_argument, default=argparse.SUPPRESS, metavar=metavar, help=what)


def add_config_argument(parser: argparse._ActionsContainer) -> None:
    """Add the optional argument CONFIG, the path of a config; the default is the config that fmm reads."""
    parser.add_argument("config", nargs="?", type=path_argument, metavar="CONFIG", help="(the one that fmm reads)")


def with_one_line_errors(run: Callable[[argparse.Namespace], int | None]) -> Callable[[argparse.Namespace], int]:
    """Return a function that calls `run`; for an error of a file, it prints one line and returns exit code 1."""

    def run_with_exit_code(options: argparse.Namespace) -> int:
        try:
            return int(run(options) or 0)
        except BrokenPipeError:
            raise  # the process that reads the output has ended
        except (ConfigError, OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.filename is None:
                raise  # an OSError without a file name is an error of stdout, which `main` reports
            print(f"fmm-tune: {error}", file=sys.stderr)
            return 1

    return run_with_exit_code


def read_config_sections(path: Path) -> Iterator[tuple[str, str, JsonValue]]:
    """Yield each section of a config file as (device key, element type, unchecked JSON section)."""
    if not path.exists():
        raise ConfigError(f"{path}: there is no config; `fmm-tune` writes one")
    try:
        devices = files.read_config(path)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    for key, types in devices.items():
        for dtype, raw in types.items():
            for name in (key, dtype):
                check_text(name, f"{path}: the name of a device or type")  # several commands print the name
            yield key, dtype, raw


def required_sections(path: Path) -> list[tuple[str, str, JsonValue]]:
    """Return the sections of a config as a list; raise ConfigError if the config has no section."""
    found = list(read_config_sections(path))
    if not found:
        raise ConfigError(f"{path} has no section of any device")
    return found


def group_sections_by_device(sections: Iterable[tuple[str, str, JsonValue]]) -> dict[str, dict[str, JsonValue]]:
    """Return the sections as a dictionary: device key -> element type -> section."""
    found: dict[str, dict[str, JsonValue]] = {}
    for key, dtype, raw in sections:
        found.setdefault(key, {})[dtype] = raw
    return found


def check_section(key: str, dtype: str, raw: JsonValue) -> schema.Tuning:
    """Check every field and plan of a section; return the section, or raise ConfigError with all errors."""
    where, wrong = f"{key}.{dtype}", list[ConfigError]()
    try:
        found = schema.read_section(raw, where, Identity(key, device_name(key, raw)), dtype)
        for entry in found.entries.values():
            try:
                Plan.parse(entry.plan)
            except PlanError as error:
                raise ConfigError(f"{where}, entry {entry.size}: {error}") from None
    except ConfigError as error:
        wrong.append(error)
    if isinstance(raw, dict):
        wrong += [*threshold_errors(raw.get("thresholds"), f"{where}.thresholds"), *check_reported_fields(raw, where)]
    if wrong:
        raise ConfigError("; ".join(map(str, wrong)))
    return found


def section_field(raw: JsonValue, name: str) -> JsonValue:
    """Return a field of an unchecked section; None if the section is damaged or the field is missing."""
    return raw.get(name) if isinstance(raw, dict) else None


def effort_and_date_text(raw: JsonValue) -> str:
    """Return the effort (such as `quick`) and the date of a section's tuning, as text."""
    effort, when = (section_field(section_field(raw, "tuned"), name) for name in ("effort", "at"))
    how = "shipped with fmm" if effort == "shipped" else effort or "measured online"
    return f"{how}, {str(when or '')[:10]}".strip(", ")
