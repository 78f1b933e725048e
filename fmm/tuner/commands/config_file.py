"""The config as the commands of fmm-tune read it: its argument, its sections, and one-line errors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fmm.config import files, schema
from fmm.config.identity import Identity
from fmm.config.reader import check_text
from fmm.config.reported_fields import reported_errors
from fmm.config.schema import ConfigError, Raw, threshold_errors
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.tuner.findings.model_in_use import device_name
from fmm.tuner.tune import path_argument

# Options that may be given before or after the command have no default here, since a default after the command would
# replace the value before it.


def add_json_option(parser: argparse._ActionsContainer, what: str = "JSON") -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=f"print {what}")


def add_output_option(parser: argparse._ActionsContainer, what: str, metavar: str = "PATH") -> None:
    """Add --output, the file or folder that a command writes."""
    parser.add_argument("--output", type=path_argument, default=argparse.SUPPRESS, metavar=metavar, help=what)


def add_config_argument(parser: argparse._ActionsContainer) -> None:
    """Add the optional argument CONFIG; the default is the config that fmm reads."""
    parser.add_argument("config", nargs="?", type=path_argument, metavar="CONFIG", help="(the one that fmm reads)")


def with_one_line_errors(run: Callable[[argparse.Namespace], int | None]) -> Callable[[argparse.Namespace], int]:
    """Return a command that prints one line and exits with 1 for an error in a file."""

    def run_guarded(options: argparse.Namespace) -> int:
        try:
            return int(run(options) or 0)
        except BrokenPipeError:
            raise  # the reader of the output has closed the pipe
        except (ConfigError, OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.filename is None:
                raise  # an error of the output: errors of files have a file name
            print(f"fmm-tune: {error}", file=sys.stderr)
            return 1

    return run_guarded


def read_config_sections(path: Path) -> Iterator[tuple[str, str, Raw]]:
    """Yield device, type and raw section of everything in a config."""
    if not path.exists():
        raise ConfigError(f"{path}: there is no config; `fmm-tune` writes one")
    try:
        devices = files.read_config(path)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    for key, types in devices.items():
        for dtype, raw in types.items():
            for name in (key, dtype):
                check_text(name, f"{path}: the name of a device or type")  # commands print these names
            yield key, dtype, raw


def required_sections(path: Path) -> list[tuple[str, str, Raw]]:
    """Return the sections of a config; raise ConfigError if it has none."""
    found = list(read_config_sections(path))
    if not found:
        raise ConfigError(f"{path} has no section of any device")
    return found


def group_sections_by_device(sections: Iterable[tuple[str, str, Raw]]) -> dict[str, dict[str, Raw]]:
    """Return the sections by device, then by type."""
    found: dict[str, dict[str, Raw]] = {}
    for key, dtype, raw in sections:
        found.setdefault(key, {})[dtype] = raw
    return found


def check_section(key: str, dtype: str, raw: Raw) -> schema.Tuned:
    """Return a section with every field and every plan checked; raise ConfigError with all that is wrong."""
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
        wrong += [*threshold_errors(raw.get("thresholds"), f"{where}.thresholds"), *reported_errors(raw, where)]
    if wrong:
        raise ConfigError("; ".join(map(str, wrong)))
    return found


def section_field(raw: Raw, name: str) -> Raw:
    """Return a field of a section, None if the section is damaged or has no such field."""
    return raw.get(name) if isinstance(raw, dict) else None


def effort_and_day_text(raw: Raw) -> str:
    """Return the effort and the day of a tuning."""
    effort, when = (section_field(section_field(raw, "tuned"), name) for name in ("effort", "at"))
    how = "shipped with fmm" if effort == "shipped" else effort or "measured online"
    return f"{how}, {str(when or '')[:10]}".strip(", ")
