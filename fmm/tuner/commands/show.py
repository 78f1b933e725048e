"""fmm-tune show: what a config says of each device and type; in short first."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import wrap

from fmm.config import environment, files
from fmm.config.schema import ConfigError, Raw, read_thresholds
from fmm.tuner.commands.config_file import (
    add_json,
    checked_fully,
    one_line_errors,
    some_sections,
    takes_config,
    tuned_how,
)
from fmm.tuner.device_registry import rejected_here
from fmm.tuner.findings.described import described
from fmm.tuner.findings.model_in_use import device_name, model_in_use
from fmm.tuner.findings.summary import TypeInShort, in_short, next_steps
from fmm.tuner.report.plan_words import plan_words, plans_in
from fmm.tuner.report.recursion_table import recursion_lines
from fmm.tuner.tune import output_path

LEGEND = "How a plan is read: levels, then behind the last > who multiplies what is left. fmm.explain(a, b) tells more."
WIDE = 116  # letters of a line
SHORT = ("coarse", "quick")  # efforts of which the usual one measures more
WITHOUT = "a processor is measured in each process, and a GPU goes by the models that come with fmm or by its datasheet"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("show", help="print what a config says of each device and type")
    takes_config(parser)
    add_json(parser, "the sections as JSON")
    parser.set_defaults(run=one_line_errors(run))


def run(options: argparse.Namespace) -> int:
    """Print what can be read; a line on stderr and exit code 1 for what cannot."""
    path = output_path(options.config)
    if options.config is None and not path.exists():
        raise ConfigError(f"{path}: there is no config; `fmm-tune` writes one. Until then {WITHOUT}")
    found = some_sections(path)
    if options.json:
        print(json.dumps([_fields(found, *section) for section in found], indent=1))
        return 0
    devices: dict[str, dict[str, Raw]] = {}
    wrong: list[str] = []
    for key, dtype, raw in found:
        try:
            checked_fully(key, dtype, raw)
            devices.setdefault(key, {})[dtype] = raw
        except ConfigError as error:
            wrong.append(f"fmm-tune: {path}: {error}")
    lines = [line for key, sections in devices.items() for line in shown_device(key, sections, path)]
    for line in (*lines, *told_plans("\n".join(lines))):
        print(line)
    for line in wrong:
        print(line, file=sys.stderr)
    return int(bool(wrong))


def _fields(found: Sequence[tuple[str, str, Raw]], key: str, dtype: str, raw: Raw) -> dict[str, Raw]:
    """A section as JSON has it; its thresholds as all that is printed goes by them."""
    known = read_thresholds(raw.get("thresholds"))
    told = {"thresholds": {**raw["thresholds"], "epsilon": known.epsilon}} if known else {}
    answers = {"fmm.matmul": _answers(found, key, dtype), "not_used_here": _not_used(key, dtype, raw)}
    return {"device": key, "dtype": dtype, **raw, **told, **answers}


def _not_used(key: str, dtype: str, raw: Raw) -> str:
    """Why not, as fmm is installed here; empty where it is, or would be if it were read, or is damaged."""
    with suppress(ConfigError):
        return " ".join(rejected_here({dtype: raw}, key))
    return ""


def _answers(found: Sequence[tuple[str, str, Raw]], key: str, dtype: str) -> Raw:
    """What fmm.matmul does by a section, which may be damaged: None then."""
    with suppress(ConfigError):
        used = model_in_use(key, dtype, {name: raw for device, name, raw in found if device == key})
        return TypeInShort(dtype, used).fields
    return None


def shown_device(key: str, sections: Mapping[str, Raw], path: Path) -> Iterator[str]:
    """In short, the papers' thresholds, what is to be done next, then type by type."""
    types = [TypeInShort(dtype, model_in_use(key, dtype, sections)) for dtype in sections]
    names = dict.fromkeys(device_name(key, raw) for raw in sections.values())
    yield f"{', '.join(names)} ({key})"
    yield from rejected_here(sections, key)
    yield from in_short(types)
    yield from recursion_lines(sections.items())
    short = [dtype for dtype, raw in sections.items() if (raw["tuned"] or {}).get("effort") in SHORT]
    yield from next_steps(key, types, _in_force(path), str(path), short)
    for dtype, raw in sections.items():
        yield ""
        yield f"{key}, {dtype} ({device_name(key, raw)}; {tuned_how(raw)})"
        yield from (f"  {why}" for why in rejected_here({dtype: raw}, key))
        yield from described(raw, dtype, key, sections)
    yield ""


def told_plans(told: str) -> Iterator[str]:
    """How plans are read, and each name that occurs, if some are told of."""
    words = plan_words(plans_in(told))
    if words:
        yield LEGEND
        width = max(map(len, words))
        for name, meaning in words.items():
            first, *more = wrap(meaning, WIDE - width)
            yield f"  {name:{width}}  {first}"
            yield from (f"  {'':{width}}  {line}" for line in more)


def _in_force(path: Path) -> bool:
    """Is it among the configs that fmm reads here?"""
    given = environment.environment_value("FMM_CONFIG")
    return path.resolve() in {known.resolve() for known in files.search_path(given)}
