"""fmm-tune paper: the figures and tables of the papers, as published, as computed, and as measured here."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from fmm.perfmodel.papers import dalberto, huang, sforza, sforza_speedups
from fmm.perfmodel.papers.inventory import inventory
from fmm.perfmodel.papers.li import tables as li
from fmm.perfmodel.papers.sforza_speedups import Measured
from fmm.perfmodel.papers.table import Table
from fmm.tuner.commands.options import add_json
from fmm.tuner.commands.render import as_csv, json_fields, text_table
from fmm.tuner.laboratory.bench import Bench
from fmm.tuner.laboratory.benches import bench_of
from fmm.tuner.laboratory.figure import (
    Figure,
    Results,
    draw_figure,
    figure_table,
    measured_now,
    read_results,
    write_results,
)
from fmm.tuner.laboratory.figures import FIGURES
from fmm.tuner.trials.environment import typed_command

# A table's name is its function's: huang_fig3 makes huang-fig3.
PAPERS = (li, huang, dalberto, sforza, sforza_speedups)
TABLES: Mapping[str, Callable[..., Table]] = {
    make.__name__.replace("_", "-"): make for paper in PAPERS for make in paper.TABLES
}
NAMES = tuple(dict.fromkeys((*TABLES, *FIGURES)))


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("paper", help="the papers' figures and tables: published, computed, measured here")
    parser.add_argument("tables", nargs="*", metavar="NAME", help="such as li-fig17; 'all': every one; none: the list")
    parser.add_argument("--measure", action="store_true", help="run the figure's experiment on this device")
    parser.add_argument("--device", default=argparse.SUPPRESS, help="cpu, or the number of a CUDA device (cpu)")
    parser.add_argument("--side", type=int, metavar="N", help="the largest side; all others are scaled with it")
    parser.add_argument(
        "--into", type=Path, metavar="DIR", help="write the samples and the pictures there (results/<device>/paper)"
    )
    parser.add_argument(
        "--measured", type=Path, metavar="PATH", help="instead of measuring: the folder of samples, or a gram.json"
    )
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--csv", action="store_true", help="print CSV")
    add_json(style)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the named table or figure, all of them, or the list."""
    names = list(NAMES) if options.tables == ["all"] else options.tables
    if not names:
        print(printed([inventory()], options))
        return 0
    if unknown := [name for name in names if name not in NAMES]:
        print(f"fmm-tune paper: unknown table {unknown[0]!r}; the tables are {', '.join(NAMES)}, all", file=sys.stderr)
        return 2
    if options.measure:
        return measure(names, options)
    try:
        tables = [made_table(name, options.measured) for name in names]
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = "is no folder of samples" if options.measured.is_dir() else "is no gram.json"
        print(f"fmm-tune paper: {options.measured} {what}: {error}", file=sys.stderr)
        return 2
    print(printed(tables, options))
    return 0


def made_table(name: str, measured: Path | None) -> Table:
    """The table, with what was measured beside it if it has a place for that."""
    if measured and measured.is_dir():
        path = measured / f"{FIGURES[name].experiment.name}.json" if name in FIGURES else measured
        if path.is_file():
            return figure_table(FIGURES[name], read_results(path))
    if name not in TABLES:
        return figure_table(FIGURES[name])
    make = TABLES[name]
    beside = measured and not measured.is_dir() and make in sforza_speedups.TABLES
    return make(measured_speedups(measured)) if beside and measured else make()


def measured_speedups(path: Path) -> Measured:
    """Of Sforza's algorithm, by type, side and depth: medians of paired ratios over gemm, and over syrk."""
    found: dict[tuple[str, int, int], tuple[float, float]] = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        if row["kind"] == "sforza" and row["candidate"]:
            ratios = (median(v / c for v, c in zip(row[x], row["candidate"], strict=True)) for x in ("vendor", "syrk"))
            over_gemm, over_syrk = ratios
            found[row["dtype"], row["size"][0], row["depth"]] = over_gemm, over_syrk
    return found


# ---- measuring


def measure(names: Sequence[str], options: argparse.Namespace) -> int:
    """Each experiment once; its figures as tables on stdout, and as samples and pictures in a folder."""
    known = [FIGURES[name] for name in names if name in FIGURES]
    if not known:
        which = ", ".join(FIGURES)
        print(f"fmm-tune paper: {names[0]} is computed, not measured; measured are {which}", file=sys.stderr)
        return 2
    name = getattr(options, "device", None) or "cpu"
    try:
        bench = bench_of(name)
    except ValueError as error:
        print(f"fmm-tune paper: {error}; valid: cpu, or the number of a CUDA device", file=sys.stderr)
        return 2
    print(printed(list(measured_tables(known, bench, options)), options))
    return 0


def measured_tables(figures: Sequence[Figure], bench: Bench, options: argparse.Namespace) -> Iterator[Table]:
    """What was measured is written before the next experiment begins."""
    folder = options.into or Path("results") / bench.folder / "paper"
    found: dict[str, Results] = {}
    for figure in figures:
        experiment = figure.experiment
        if experiment.name not in found:
            side = options.side or min(bench.side, experiment.side)
            found[experiment.name] = measured_now(experiment, bench, side, typed_command())
            write_results(found[experiment.name], experiment, folder / f"{experiment.name}.json")
        save_picture(figure, found[experiment.name], folder / "report")
        yield figure_table(figure, found[experiment.name])


def save_picture(figure: Figure, results: Results, folder: Path) -> None:
    """As PNG, if Matplotlib is there."""
    try:
        made = draw_figure(figure, results)
    except ModuleNotFoundError:
        return
    folder.mkdir(parents=True, exist_ok=True)
    made.savefig(folder / f"{figure.name}.png", dpi=120)


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
