"""fmm-tune merge: write the sections of other configs into one config."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from fmm.config import store
from fmm.config.schema import ConfigError, JsonValue
from fmm.tuner.commands.config_file import (
    add_output_option,
    check_section,
    effort_and_date_text,
    read_config_sections,
    required_sections,
    section_field,
    with_one_line_errors,
)
from fmm.tuner.tune import output_path, path_argument


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `merge` to the commands of fmm-tune."""
    parser = commands.add_parser("merge", help="write the sections of other configs into one")
    parser.add_argument("sources", nargs="+", type=path_argument, metavar="CONFIG")
    parser.add_argument("--replace", action="store_true", help="let them replace sections that were tuned otherwise")
    add_output_option(parser, "the config to write (the one that fmm reads)")
    parser.set_defaults(run=with_one_line_errors(run_merge))


@dataclass(frozen=True)
class SourceSection:
    """A section that is merged into the output config, and the config file that it comes from."""

    path: Path
    key: str
    dtype: str
    raw: JsonValue

    def merged_section(self, present: JsonValue) -> tuple[str, JsonValue]:
        """Merge this section with the output config's section; return what was done, as text, and the section to write.

        If the merged section has no calibration, its entries are added to `present`, the output config's section,
        without other changes. ConfigError is raised if `present` is damaged.
        """
        if present is None:
            return "added", self.raw
        if self.raw["calibration"] is None:
            check_section(self.key, self.dtype, present)
            same = present["versions"] == self.raw["versions"]
            entries = [{**entry, "verified": entry.get("verified", True) and same} for entry in self.raw["entries"]]
            return "entries added", {**present, "entries": entries}
        if section_field(present, "calibration") in (None, self.raw["calibration"]):
            return "added", self.raw
        return f"replaced the tuning {effort_and_date_text(present)}", self.raw


def run_merge(options: argparse.Namespace) -> None:
    """Merge the sections of all source configs into the output config; if one is invalid, write nothing.

    ConfigError is raised for a damaged section, and for a section that would replace another tuning without --replace.
    """
    into = output_path(options.output)
    sources = [
        SourceSection(path, key, dtype, raw)
        for path in (output_path(source) if source.is_dir() else source for source in options.sources)
        for key, dtype, raw in required_sections(path)
    ]
    present = {(key, dtype): (into, raw) for key, dtype, raw in read_config_sections(into)} if into.exists() else {}
    steps = []
    for source in sources:
        check_section(source.key, source.dtype, source.raw)
        path, raw = present.get((source.key, source.dtype), (into, None))
        try:
            done, section = source.merged_section(raw)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        if done.startswith("replaced") and not options.replace:
            raise ConfigError(
                f"{path} and {source.path} have different tunings of {source.key}, {source.dtype}; "
                f"pass --replace to write the tuning of {source.path}"
            )
        present[source.key, source.dtype] = source.path, section
        steps.append((source, done, section))
    store.merge_sections(into, [(source.key, source.dtype, section) for source, _, section in steps])
    for source, done, _ in steps:
        print(f"{source.key}, {source.dtype}: {done}, from {source.path}")
    print(f"merged into {into}")
