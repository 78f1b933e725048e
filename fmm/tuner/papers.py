"""fmm-tune paper: every reproduced table of the papers, printed and computed side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping

from fmm.perfmodel import paper_dalberto, paper_huang, paper_li
from fmm.perfmodel.table import Table
from fmm.tuner.render import as_csv, as_json, text

# A table's name is its function's: huang_fig3 makes huang-fig3.
TABLES: Mapping[str, Callable[[], Table]] = {
    make.__name__.replace("_", "-"): make for paper in (paper_li, paper_huang, paper_dalberto) for make in paper.TABLES
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("paper", help="print a reproduced table of the papers (no name: list them)")
    parser.add_argument("table", nargs="?", metavar="NAME", help="such as li-fig17; 'all' for every table")
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--csv", dest="style", action="store_const", const=as_csv, default=text, help="print CSV")
    style.add_argument("--json", dest="style", action="store_const", const=as_json, help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the named table, all of them, or their list."""
    if options.table is None:
        width = max(map(len, TABLES))
        print("\n".join(f"{name.ljust(width)}  {make().title}" for name, make in TABLES.items()))
        return 0
    names = list(TABLES) if options.table == "all" else [options.table]
    if unknown := [name for name in names if name not in TABLES]:
        print(f"fmm-tune paper: unknown table {unknown[0]!r}; the tables are {', '.join(TABLES)}, all", file=sys.stderr)
        return 2
    print("\n\n".join(options.style(TABLES[name]()) for name in names))
    return 0
