"""fmm-tune paper: the figures and tables of the papers, as published, as computed, and as measured here."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from benchmarks.papers.command import CannotMeasureError, Laboratory, laboratory, missing_table
from benchmarks.papers.experiment import DamagedSamplesError, has_results, read_results
from benchmarks.papers.figure import Figure, figure_table
from benchmarks.papers.figures import FIGURES

from fmm.perfmodel.papers import dalberto, huang, sforza
from fmm.perfmodel.papers import li_results as li
from fmm.perfmodel.papers.inventory import entry_table, inventory, shown_by
from fmm.perfmodel.papers.table import Table
from fmm.tuner.commands.config_file import add_json, add_output
from fmm.tuner.commands.render import as_csv, json_fields, text_table

# A table's name is its function's: huang_fig3 makes huang-fig3.
PAPERS = (li, huang, dalberto, sforza)
TABLES: Mapping[str, Callable[..., Table]] = {
    make.__name__.replace("_", "-"): make for paper in PAPERS for make in paper.TABLES
}
NAMES = tuple(dict.fromkeys((*TABLES, *FIGURES)))
MISSING = "missing"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "paper",
        help="the papers' figures and tables: published, computed, measured here",
        epilog="exit codes: 0; 1 if something failed, 2 for bad arguments, 130 after Ctrl-C (what is done is kept)",
    )
    add = parser.add_argument
    named = "as li-fig17; none: the list; all; missing [NAME ...]: what is not measured"
    add("tables", nargs="*", metavar="NAME", help=named)
    add("--measure", action="store_true", help="run the experiments of these figures on this device")
    add("--device", default=argparse.SUPPRESS, help="where to measure: cpu, or the number of a CUDA device (cpu)")
    add("--side", type=int, metavar="N", help="measure with this as the largest side; all others are scaled with it")
    limit = "begin nothing that would not be measured within S seconds"
    add("--time-limit", type=float, default=argparse.SUPPRESS, metavar="S", help=limit)
    add_output(parser, "where samples and pictures are kept (results/<device>/paper)", "DIR")
    add("--measured", type=Path, metavar="DIR", help="instead of measuring: the folder of samples")
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--csv", action="store_true", help="print CSV")
    add_json(style)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the named tables and figures, all of them, or the list."""
    asked = list(dict.fromkeys(NAMES if options.tables == ["all"] else options.tables))
    try:
        check_options(asked, options)
        if asked[:1] == [MISSING]:
            return run_missing([known_figure(name) for name in asked[1:]], options)
        if not asked:
            print(printed([inventory()], options))
            return 0
        names = list(dict.fromkeys(known_name(name) for name in asked))
        return run_measured(names, options) if options.measure else run_kept(names, options)
    except (BadRequestError, CannotMeasureError) as error:
        print(f"fmm-tune paper: {error}", file=sys.stderr)
        return 2


class BadRequestError(Exception):
    """Arguments that make no sense, or not together."""


def check_options(names: Sequence[str], options: argparse.Namespace) -> None:
    """What is asked for must be used."""
    here = {"--device": getattr(options, "device", None), "--side": options.side, "--output": options.output}
    if names[:1] != [MISSING] and not options.measure:
        for option, value in {**here, "--time-limit": options.time_limit}.items():
            if value is not None:
                raise BadRequestError(f"{option} is for measuring; add --measure")
    if options.measure and options.measured:
        raise BadRequestError("--measured shows what was measured before, --measure measures; one of them")
    if options.measure and not names:
        raise BadRequestError(f"--measure needs names of figures, or '{MISSING}', or 'all'")
    if options.measured and not options.measured.is_dir():
        raise BadRequestError(f"{options.measured} is no folder of samples")


def known_name(name: str) -> str:
    """A table, a figure, or that which shows another figure of a paper, such as li-fig32 for li-fig33."""
    if name in NAMES:
        return name
    shown = shown_by(name)
    if shown is None:
        near = get_close_matches(name.lower(), NAMES, 1, 0.8)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise BadRequestError(f"unknown table {name!r}{hint}; the tables are {', '.join(NAMES)}, all, {MISSING}")
    return shown


def known_figure(name: str) -> Figure:
    """One that is measured."""
    found = FIGURES.get(known_name(name))
    if found is None:
        raise BadRequestError(f"{name} is computed, not measured; measured are {', '.join(FIGURES)}")
    return found


def run_kept(names: Sequence[str], options: argparse.Namespace) -> int:
    """As published, as computed, and as measured before."""
    try:
        tables = [made_table(name, options.measured) for name in names]
    except DamagedSamplesError as error:
        raise BadRequestError(str(error)) from None
    if options.tables != ["all"]:
        tell_unmeasured(names, options.measured)
    print(printed(tables, options))
    return 0


def tell_unmeasured(names: Sequence[str], measured: Path | None) -> None:
    """Of which figures such a folder has no samples: on stderr, since the tables are printed all the same."""
    if measured is not None:
        for name in (name for name in names if name in FIGURES):
            if not has_results(samples_of(name, measured)):
                print(f"fmm-tune paper: no samples of {name} in {measured}", file=sys.stderr)


def samples_of(name: str, folder: Path) -> Path:
    return folder / f"{FIGURES[name].experiment.name}.json"


def made_table(name: str, measured: Path | None) -> Table:
    """The table, with what was measured beside it if it has a place for that."""
    if measured and name in FIGURES:
        path = samples_of(name, measured)
        if has_results(path):
            return figure_table(FIGURES[name], read_results(path))
    if name not in TABLES:
        return figure_table(FIGURES[name]) if name in FIGURES else entry_table(name)
    return TABLES[name]()


def run_measured(names: Sequence[str], options: argparse.Namespace) -> int:
    """The figures among them are measured, whatever is on record."""
    figures = [FIGURES[name] for name in names if name in FIGURES] or [known_figure(names[0])]
    found = laboratory(options)
    code = found.measure(found.experiments_of(figures), anew=True)
    print(printed([measured_table(name, found) for name in names], options))
    return code


def measured_table(name: str, found: Laboratory) -> Table:
    results = found.results.get(FIGURES[name].experiment.name) if name in FIGURES else None
    return figure_table(FIGURES[name], results) if results is not None else made_table(name, None)


def run_missing(figures: Sequence[Figure], options: argparse.Namespace) -> int:
    """What of these figures, or of all, is not on record; with --measure it is measured."""
    found = laboratory(options)
    before = found.missing(figures)
    code = found.measure(before, anew=False) if options.measure else 0
    print(printed([missing_table(before, found)], options))
    return code


# ---- printing


def printed(tables: Sequence[Table], options: argparse.Namespace) -> str:
    """One table, or several: as JSON a list of them, as CSV each below a line with its name."""
    if options.json:
        return json.dumps(
            json_fields(tables[0]) if len(tables) == 1 else [json_fields(table) for table in tables], indent=1
        )
    if options.csv and len(tables) > 1:
        return "\n\n".join(f"{table.name}\n{as_csv(table)}" for table in tables)
    return "\n\n".join((as_csv if options.csv else text_table)(table) for table in tables)
