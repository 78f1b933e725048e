"""fmm-tune paper: every reproduced table of the papers, printed and computed side by side."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence

from fmm.perfmodel.papers import dalberto, huang, li, sforza
from fmm.perfmodel.papers.table import Table
from fmm.tuner.commands.options import add_json
from fmm.tuner.commands.render import as_csv, json_fields, text_table

# A table's name is its function's: huang_fig3 makes huang-fig3.
TABLES: Mapping[str, Callable[[], Table]] = {
    make.__name__.replace("_", "-"): make for paper in (li, huang, dalberto, sforza) for make in paper.TABLES
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("paper", help="print a reproduced table of the papers (no name: list them)")
    parser.add_argument("table", nargs="?", metavar="NAME", help="such as li-fig17; 'all' for every table")
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--csv", action="store_true", help="print CSV")
    add_json(style)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the named table, all of them, or their list."""
    names = list(TABLES) if options.table in (None, "all") else [options.table]
    if unknown := [name for name in names if name not in TABLES]:
        print(f"fmm-tune paper: unknown table {unknown[0]!r}; the tables are {', '.join(TABLES)}, all", file=sys.stderr)
        return 2
    tables = [TABLES[name]() for name in names]
    print(listed(tables, options) if options.table is None else printed(tables, options))
    return 0


def listed(tables: Sequence[Table], options: argparse.Namespace) -> str:
    """Names and titles."""
    rows = tuple((table.name, table.title) for table in tables)
    index = Table("tables", "the tables of the papers", ("name", "title"), rows)
    if options.json:
        return json.dumps([{"name": name, "title": title} for name, title in rows], indent=1)
    width = max(len(table.name) for table in tables)
    return as_csv(index) if options.csv else "\n".join(f"{t.name.ljust(width)}  {t.title}" for t in tables)


def printed(tables: Sequence[Table], options: argparse.Namespace) -> str:
    """One table, or several: as JSON a list of them, as CSV each below a line with its name."""
    if options.json:
        return json.dumps(
            json_fields(tables[0]) if len(tables) == 1 else [json_fields(table) for table in tables], indent=1
        )
    if options.csv and len(tables) > 1:
        return "\n\n".join(f"{table.name}\n{as_csv(table)}" for table in tables)
    return "\n\n".join((as_csv if options.csv else text_table)(table) for table in tables)
