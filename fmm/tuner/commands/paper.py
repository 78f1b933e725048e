"""fmm-tune paper: print figures and tables of the papers, with the published numbers and numbers that fmm computes.

To measure the numbers instead of computing them, run `python -m benchmarks papers` in a clone of the repository.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

from fmm.perfmodel.papers import cards, dalberto, huang, sforza
from fmm.perfmodel.papers import li_results as li
from fmm.perfmodel.papers.inventory import figure_status_table, inventory_table, table_name_of_figure, table_names
from fmm.perfmodel.papers.table import PaperTable
from fmm.tuner.commands.config_file import add_json_option
from fmm.tuner.commands.render import table_as_csv, table_as_text, table_json_fields

# Each table is named after the function that computes the table: huang_fig3 computes huang-fig3.
PAPER_MODULES = (li, huang, dalberto, sforza, cards)
PAPER_TABLES: Mapping[str, Callable[..., PaperTable]] = {
    make.__name__.replace("_", "-"): make for paper in PAPER_MODULES for make in paper.TABLE_FUNCTIONS
}


class UnknownTableError(Exception):
    """Raised if there is no table with this name, or if fmm cannot compute the table."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `paper` to the commands of fmm-tune."""
    parser = commands.add_parser("paper", help="the papers' figures and tables: published and computed")
    parser.add_argument("tables", nargs="*", metavar="NAME", help="as li-fig17; none: the list; all")
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--csv", action="store_true", help="print CSV")
    add_json_option(style)
    parser.set_defaults(run=run_paper)


def run_paper(options: argparse.Namespace) -> int:
    """Print the named tables, all tables, or the list of tables; return the exit code."""
    try:
        names = [
            found
            for name in options.tables
            for found in (PAPER_TABLES if name == "all" else [find_table_name(name, PAPER_TABLES)])
        ]
        tables = [computed_table(name) for name in dict.fromkeys(names)] or [inventory_table()]
    except UnknownTableError as error:
        print(f"fmm-tune paper: {error}", file=sys.stderr)
        return 2
    print(format_tables(tables, options))
    return 0


def find_table_name(name: str, known: Mapping[str, object]) -> str:
    """Return the name of the table that shows a figure of a paper, for example li-fig32 for the figure li-fig33.

    Raise UnknownTableError if no table shows the figure.
    """
    if name in known or name in table_names():
        return name
    if (shown := table_name_of_figure(name)) is not None:
        return shown
    near = get_close_matches(name.lower(), known, 1, 0.8)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise UnknownTableError(f"unknown table {name!r}{hint}; the tables are {', '.join(known)}")


def computed_table(name: str) -> PaperTable:
    """Return a paper's table with published and computed numbers.

    A figure that shows an algorithm has no numbers: its table names fmm's implementation of the algorithm.
    """
    if name in PAPER_TABLES:
        return PAPER_TABLES[name]()
    if name in table_names():
        raise UnknownTableError(f"{name} is measured, not computed: `python -m benchmarks papers {name}` prints it")
    return figure_status_table(name)


def format_tables(tables: Sequence[PaperTable], options: argparse.Namespace) -> str:
    """Return the tables as text, JSON (an object, or a list for several tables) or CSV (each table below its name)."""
    if options.json:
        fields = [table_json_fields(table) for table in tables]
        return json.dumps(fields[0] if len(fields) == 1 else fields, indent=1)
    if options.csv and len(tables) > 1:
        return "\n\n".join(f"{table.name}\n{table_as_csv(table)}" for table in tables)
    return "\n\n".join((table_as_csv if options.csv else table_as_text)(table) for table in tables)
