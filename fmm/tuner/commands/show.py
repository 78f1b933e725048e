"""fmm-tune show: print a config as tables, for each device and element type."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fmm.config import environment, files
from fmm.config.schema import ConfigError, JsonValue, read_thresholds
from fmm.tuner.commands.config_file import (
    add_config_argument,
    add_json_option,
    check_section,
    effort_and_day_text,
    required_sections,
    with_one_line_errors,
)
from fmm.tuner.device_registry import cpu_rejection_lines
from fmm.tuner.findings.model_in_use import device_name, model_in_use
from fmm.tuner.findings.summary import (
    SectionText,
    TypeSummary,
    next_steps_table,
    rejected_table,
    speedup_table,
    thresholds_of_types,
)
from fmm.tuner.report.plan_names import find_plan_texts, plan_names_table
from fmm.tuner.tune import output_path

SHORT_EFFORTS = ("coarse", "quick")  # names of the efforts that measure less than the default effort


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `show` to the commands of fmm-tune."""
    parser = commands.add_parser("show", help="print what a config holds of each device and type")
    add_config_argument(parser)
    add_json_option(parser, "the sections as JSON")
    parser.set_defaults(run=with_one_line_errors(run_show))


def run_show(options: argparse.Namespace) -> int:
    """Print all valid sections; for each damaged section print a line on stderr, and return exit code 1."""
    path = output_path(options.config)
    if options.config is None and not path.exists():
        raise ConfigError(
            f"{path}: there is no config; `fmm-tune` writes one. Until then fmm probes a CPU in each process, and uses "
            "the shipped models or the datasheet of a GPU"
        )
    found = required_sections(path)
    if options.json:
        print(json.dumps([_section_fields(found, *section) for section in found], indent=1))
        return 0
    devices: dict[str, dict[str, JsonValue]] = {}
    wrong: list[str] = []
    for key, dtype, raw in found:
        try:
            check_section(key, dtype, raw)
            devices.setdefault(key, {})[dtype] = raw
        except ConfigError as error:
            wrong.append(f"fmm-tune: {path}: {error}")
    lines = [line for key, sections in devices.items() for line in device_summary_lines(key, sections, path)]
    glossary = plan_names_table(find_plan_texts("\n".join(lines)))
    for line in (*lines, *(glossary.text_lines if glossary.rows else ())):
        print(line)
    for line in wrong:
        print(line, file=sys.stderr)
    return int(bool(wrong))


def device_summary_lines(key: str, sections: Mapping[str, JsonValue], path: Path) -> Iterator[str]:
    """Yield the lines of a device: speedups of all types, thresholds, suggested commands, then each type's tables."""
    types = [TypeSummary(dtype, model_in_use(key, dtype, sections)) for dtype in sections]
    names = dict.fromkeys(device_name(key, raw) for raw in sections.values())
    yield f"{', '.join(names)} ({key})"
    yield from cpu_rejection_lines(sections, key)
    short = [dtype for dtype, raw in sections.items() if (raw["tuned"] or {}).get("effort") in SHORT_EFFORTS]
    in_force = path.resolve() in {x.resolve() for x in files.search_path(environment.environment_value("FMM_CONFIG"))}
    tables = [speedup_table(types), rejected_table(types), thresholds_of_types(sections.items())]
    for table in (*tables, next_steps_table(key, types, in_force, str(path), short)):
        if table.rows:
            yield from table.text_lines
    for dtype, raw in sections.items():
        yield ""
        yield f"{key}, {dtype} ({device_name(key, raw)}; {effort_and_day_text(raw)})"
        yield from (f"  {why}" for why in cpu_rejection_lines({dtype: raw}, key))
        yield from SectionText(raw, dtype, key, sections).text_lines
    yield ""


# ---- JSON


def _section_fields(
    found: Sequence[tuple[str, str, JsonValue]], key: str, dtype: str, raw: JsonValue
) -> dict[str, JsonValue]:
    """Return a section's fields for JSON, and a summary of the decisions that fmm.matmul makes with the section."""
    thresholds = read_thresholds(raw.get("thresholds"))
    shown = {"thresholds": {**raw["thresholds"], "epsilon": thresholds.epsilon}} if thresholds else {}
    answers, rejected = None, ""
    with suppress(ConfigError):  # fmm.matmul ignores a damaged section
        used = model_in_use(key, dtype, {name: raw for device, name, raw in found if device == key})
        answers = TypeSummary(dtype, used).json_fields
    with suppress(ConfigError):
        rejected = " ".join(cpu_rejection_lines({dtype: raw}, key))
    return {"device": key, "dtype": dtype, **raw, **shown, "fmm.matmul": answers, "not_used_here": rejected}
