"""fmm-tune report: draw a config and its trials as an HTML page and as PNG and SVG files."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fmm.config import schema
from fmm.config.store import write_file
from fmm.kernels.plans.plan import PlanError
from fmm.tuner.commands.config_file import (
    add_config_argument,
    add_json_option,
    add_output_option,
    check_section,
    group_sections_by_device,
    read_config_sections,
)
from fmm.tuner.device_registry import cpu_rejection_lines
from fmm.tuner.findings.model_in_use import model_in_use
from fmm.tuner.report.figures import FIGURE_STYLE, save_figure
from fmm.tuner.report.overview import (
    PHONE_FIGURE_INCHES,
    SCREEN_FIGURE_INCHES,
    draw_speedups_of_types,
    speedups_of_table_sides,
)
from fmm.tuner.report.page import report_html
from fmm.tuner.report.type_figures import available_figures
from fmm.tuner.report.type_report import TypeReport
from fmm.tuner.trials.record import TrialFile, first_look_trials, tuning_of_section
from fmm.tuner.tune import output_path, trials_path


def type_reports(path: Path) -> Iterator[TypeReport]:
    """Yield a TypeReport for each section of a config that has a calibration and recorded trials."""
    tunings = TrialFile(trials_path(path)).read_tunings()
    for key, sections in group_sections_by_device(read_config_sections(path)).items():
        for dtype, raw in sections.items():
            tuned, tuning = check_section(key, dtype, raw), tuning_of_section(tunings, key, dtype, raw)
            if tuned.calibration is not None and tuning is not None:
                used = model_in_use(key, dtype, sections)
                first = first_look_trials(tunings, tuning.header)
                yield TypeReport(key, dtype, raw, tuned, tuning, tuned.calibration, sections, used, first)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `report` to the commands of fmm-tune."""
    parser = commands.add_parser("report", help="draw a config and its trials: an HTML page, PNG and SVG files")
    add_config_argument(parser)
    add_output_option(
        parser, "where to write: a folder, or a file that ends in .html (the folder of the config)", "PATH"
    )
    add_json_option(parser, "the files' names as JSON")
    parser.set_defaults(run=run_report)


def run_report(options: argparse.Namespace) -> int:
    """Write the HTML page and the figures; return exit code 1 if there is nothing to draw, else 0."""
    path = output_path(options.config)
    try:
        found = list(type_reports(path))
        if not found:
            raise schema.ConfigError(f"{path}: nothing to draw: no section has a calibration and trials beside it")
        written = write_report(found, getattr(options, "output", None) or path.parent)
    except ModuleNotFoundError as error:
        print(f"fmm-tune report: {error.name} is not installed; pip install '.[tune]' in fmm's clone", file=sys.stderr)
        return 1
    except (schema.ConfigError, PlanError, OSError) as error:
        print(f"fmm-tune report: {error}", file=sys.stderr)
        return 1
    for key, sections in {report.device: report.sections for report in found}.items():
        for line in cpu_rejection_lines(sections, key):
            print(line, file=sys.stderr)
    print(
        json.dumps([str(p) for p in written])
        if options.json
        else f"written: {written[0]} and {len(written) - 1} figures"
    )
    return 0


def write_report(found: Sequence[TypeReport], output: Path) -> list[Path]:
    """Write the HTML page, and each figure as PNG and SVG in the folder `report` beside the page; return all paths.

    If `output` ends in .html, `output` is the path of the page; otherwise `output` is the folder of `report.html`.
    """
    from matplotlib import rc_context

    page, folder = (output, output.parent) if output.suffix == ".html" else (output / "report.html", output)
    drawings = folder / "report"
    drawings.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    gains = speedups_of_table_sides(found)

    def save(figure: Any, name: str) -> str:
        files, svg = save_figure(figure, drawings / name)
        paths.extend(files)
        return svg

    with rc_context(FIGURE_STYLE):
        sizes = ("speedup", SCREEN_FIGURE_INCHES), ("speedup-narrow", PHONE_FIGURE_INCHES)
        wide, narrow = (save(draw_speedups_of_types(found, gains, size), name) for name, size in sizes)
        drawn = [
            (report, {name: save(draw(report), f"{report.device}-{report.dtype}-{name}") for name, draw in own.items()})
            for report, own in ((report, available_figures(report)) for report in found)
        ]
    write_file(page, report_html(drawn, gains, (wide, narrow)))
    return [page, *paths]
