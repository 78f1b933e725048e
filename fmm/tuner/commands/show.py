"""fmm-tune show: print a table for each device in a config; with `--verbose` or a type, print every table of a type."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from fmm.config.files import SHIPPED_CONFIG
from fmm.config.schema import ConfigError, JsonValue, read_thresholds
from fmm.dtypes import DTYPES, FLOAT_TYPES
from fmm.tuner.commands.config_file import (
    add_config_argument,
    add_json_option,
    check_section,
    effort_and_date_text,
    required_sections,
    with_one_line_errors,
)
from fmm.tuner.device_registry import cpu_rejection_lines
from fmm.tuner.findings.device_summary import is_config_in_force, print_summary, summarize_device
from fmm.tuner.findings.model_in_use import device_name, model_in_use
from fmm.tuner.findings.summary import SectionText, TypeSummary, thresholds_of_types
from fmm.tuner.report.plan_names import find_plan_texts, plan_names_table
from fmm.tuner.tune import output_path

NO_CONFIG_NOTE = (
    "fmm-tune: {}: there is no config; `fmm-tune` writes one. Until then fmm uses the models that ship, which follow, "
    "and for other GPUs the datasheet; it probes a CPU in each process"
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `show` to the commands of fmm-tune."""
    parser = commands.add_parser("show", help="print what a config holds of each device and type")
    add_config_argument(parser)
    parser.add_argument(
        "types",
        nargs="*",
        type=_element_type_argument,
        metavar="TYPE",
        help="print every table of these types (--verbose: all)",
    )
    parser.add_argument(
        "--verbose", action="store_true", default=argparse.SUPPRESS, help="print every table of each type too"
    )
    add_json_option(parser, "the sections as JSON")
    parser.set_defaults(run=with_one_line_errors(run_show))


def _element_type_argument(text: str) -> str:
    if text not in DTYPES:
        raise argparse.ArgumentTypeError(f"unknown type {text!r}; valid: {', '.join(FLOAT_TYPES)}")
    return text


def run_show(options: argparse.Namespace) -> int:
    """Print all valid sections, and a line on stderr for each damaged section.

    Return exit code 1 if a section is damaged, else 0.
    """
    named, shown = options.config, list(options.types)
    # an element type as in `fmm-tune show float32`; a config file of this name is written ./float32
    if named is not None and str(named) in DTYPES:
        named, shown = None, [str(named), *shown]
    path = output_path(named)
    if named is None and not path.exists() and is_config_in_force(SHIPPED_CONFIG):
        print(NO_CONFIG_NOTE.format(path), file=sys.stderr)
        path = SHIPPED_CONFIG
    found = required_sections(path)
    if missing := [dtype for dtype in shown if dtype not in {name for _, name, _ in found}]:
        raise ConfigError(f"{path} has no section of {', '.join(missing)}")
    if options.json:
        rows = [_section_fields(found, *section) for section in found if not shown or section[1] in shown]
        print(json.dumps(rows, indent=1))
        return 0
    devices: dict[str, dict[str, JsonValue]] = {}
    wrong: list[str] = []
    for key, dtype, raw in found:
        try:
            check_section(key, dtype, raw)
            devices.setdefault(key, {})[dtype] = raw
        except ConfigError as error:
            wrong.append(f"fmm-tune: {path}: {error}")
    for key, sections in devices.items():
        dtypes = [dtype for dtype in sections if not shown or dtype in shown]
        if dtypes:
            in_force = is_config_in_force(path)
            print_summary(summarize_device(key, sections, path, in_force=in_force, dtypes=dtypes), sys.stdout)
            for line in cpu_rejection_lines({dtype: sections[dtype] for dtype in dtypes}, key):
                print(line)
            if shown or options.verbose:
                _print_details(key, sections, dtypes)
    for line in wrong:
        print(line, file=sys.stderr)
    return int(bool(wrong))


def _print_details(key: str, sections: Mapping[str, JsonValue], dtypes: Sequence[str]) -> None:
    """Print the papers' thresholds, every table of these types, and what the names in the printed plans mean."""
    lines = ["", *thresholds_of_types((dtype, sections[dtype]) for dtype in dtypes).text_lines]
    for dtype in dtypes:
        raw = sections[dtype]
        lines += ["", f"{key}, {dtype} ({device_name(key, raw)}; {effort_and_date_text(raw)})"]
        lines += SectionText(raw, dtype, key, sections).text_lines
    glossary = plan_names_table(find_plan_texts("\n".join(lines)))
    for line in (*lines, *(glossary.text_lines if glossary.rows else ())):
        print(line)


# ---- JSON


def _section_fields(
    found: Sequence[tuple[str, str, JsonValue]], key: str, dtype: str, raw: JsonValue
) -> dict[str, JsonValue]:
    """Return a section's fields for JSON, with a summary of fmm.matmul's decisions in the field `fmm.matmul`."""
    thresholds = read_thresholds(raw.get("thresholds"))
    shown = {"thresholds": {**raw["thresholds"], "epsilon": thresholds.epsilon}} if thresholds else {}
    answers, rejected = None, ""
    with suppress(ConfigError):  # fmm.matmul ignores a damaged section
        used = model_in_use(key, dtype, {name: raw for device, name, raw in found if device == key})
        answers = TypeSummary(dtype, used).json_fields
    with suppress(ConfigError):
        rejected = " ".join(cpu_rejection_lines({dtype: raw}, key))
    return {"device": key, "dtype": dtype, **raw, **shown, "fmm.matmul": answers, "not_used_here": rejected}
