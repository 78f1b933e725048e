"""fmm-tune paper: every reproduced table of the papers, printed and computed side by side."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from fmm.perfmodel.papers import dalberto, huang, li, sforza, sforza_speedups
from fmm.perfmodel.papers.sforza_speedups import Measured
from fmm.perfmodel.papers.table import Table
from fmm.tuner.commands.options import add_json
from fmm.tuner.commands.render import as_csv, json_fields, text_table

# A table's name is its function's: huang_fig3 makes huang-fig3.
PAPERS = (li, huang, dalberto, sforza, sforza_speedups)
TABLES: Mapping[str, Callable[..., Table]] = {
    make.__name__.replace("_", "-"): make for paper in PAPERS for make in paper.TABLES
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("paper", help="print a reproduced table of the papers (no name: list them)")
    parser.add_argument("table", nargs="?", metavar="NAME", help="such as li-fig17; 'all' for every table")
    parser.add_argument("--measured", type=Path, metavar="FILE", help="a gram.json, beside Sforza's numbers")
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
    try:
        tables = [made_table(name, options.measured) for name in names]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"fmm-tune paper: {options.measured} is no gram.json: {error}", file=sys.stderr)
        return 2
    print(listed(tables, options) if options.table is None else printed(tables, options))
    return 0


def made_table(name: str, measured: Path | None) -> Table:
    """The table, with what was measured beside it if it has a place for that."""
    make = TABLES[name]
    return make(measured_speedups(measured)) if measured and make in sforza_speedups.TABLES else make()


def measured_speedups(path: Path) -> Measured:
    """Of Sforza's algorithm, by type, side and depth: medians of paired ratios over gemm, and over syrk."""
    found: dict[tuple[str, int, int], tuple[float, float]] = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        if row["kind"] == "sforza" and row["candidate"]:
            ratios = (median(v / c for v, c in zip(row[x], row["candidate"], strict=True)) for x in ("vendor", "syrk"))
            over_gemm, over_syrk = ratios
            found[row["dtype"], row["size"][0], row["depth"]] = over_gemm, over_syrk
    return found


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
