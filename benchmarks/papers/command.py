"""The papers' figures: `python -m benchmarks papers [NAME ...]` prints published, computed and measured numbers.

The samples of all devices in results/ are printed; `--measured DIR` prints those of one folder. Without a name it
prints the list of figures. `--measure` runs their experiments on this device. `missing` lists the experiments without
samples of this device, and `missing --measure` measures them, the shortest first. Samples are written part by part to
results/<device>/paper: an interrupted call loses at most one part, and the same command continues.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import SlowKernelError, check_blas_kernel
from benchmarks.papers.bench import Bench, bench_of
from benchmarks.papers.experiment import (
    DamagedSamplesError,
    Outcome,
    Progress,
    Results,
    TimeLimit,
    experiment_progress,
    has_results,
    measured_parts,
    read_results,
    sorted_by_worth,
    unfinished_experiments,
)
from benchmarks.papers.figure import Figure, draw_figure, figure_table
from benchmarks.papers.figures import EXPERIMENTS, FIGURES
from fmm.perfmodel.papers.inventory import inventory_table
from fmm.perfmodel.papers.table import PaperTable
from fmm.tuner.commands.paper import PAPER_TABLES, UnknownTableError, computed_table, find_table_name, format_tables
from fmm.tuner.trials.environment import command_line_words
from fmm.tuner.tune import EXIT_INTERRUPTED

COMMAND = "benchmarks papers"
MISSING = "missing"
RESULTS_FOLDER = Path(__file__).parents[2] / "results"
NAMES = {**PAPER_TABLES, **FIGURES}


class BadRequestError(Exception):
    """Options that contradict each other, or that this device cannot serve; the message names the change."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the named tables and figures, all of them, the list, or the missing experiments; return the exit code."""
    options = parsed_options(arguments)
    try:
        names = list(dict.fromkeys(NAMES if options.names == ["all"] else options.names))
        check_options(names, options)
        if not names:
            tables, code = [inventory_table()], 0
        elif names[0] == MISSING:
            tables, code = missing_experiments([measured_figure(name) for name in names[1:]], options)
        else:
            names = list(dict.fromkeys(find_table_name(name, NAMES) for name in names))
            tables, code = (measured_tables if options.measure else recorded_tables)(names, options)
    except (BadRequestError, UnknownTableError) as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return 2
    print(format_tables(tables, options))
    return code


def parsed_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; argparse exits with 2 if it is malformed."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {COMMAND}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit codes: 0; 1 if a part failed, 2 for bad arguments, 130 after Ctrl-C (finished parts are saved)",
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="as li-fig30; none: the list; all; missing [NAME ...]")
    add("--measure", action="store_true", help="run the experiments of these figures on this device")
    add("--device", help="where to measure: cpu, or the number of a CUDA device (default: cpu)")
    add("--side", type=int, metavar="N", help="largest side to measure; all other sides are scaled with it")
    add("--time-limit", type=float, metavar="S", help="begin no part that is expected to end after S seconds")
    add("--output", type=Path, metavar="DIR", help="folder of samples and pictures (results/<device>/paper)")
    any_kernel = "measure on a CPU although BLAS runs a kernel for an older processor"
    add("--any-blas-kernel", action="store_true", help=any_kernel)
    add("--measured", type=Path, metavar="DIR", help="print the samples of this folder alone (all in results/)")
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--csv", action="store_true", help="print CSV")
    style.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def check_options(names: Sequence[str], options: argparse.Namespace) -> None:
    """Refuse options that would have no effect, or that contradict each other."""
    for_measuring = {
        "--device": options.device,
        "--side": options.side,
        "--output": options.output,
        "--time-limit": options.time_limit,
    }
    if names[:1] != [MISSING] and not options.measure:
        for option, value in for_measuring.items():
            if value is not None:
                raise BadRequestError(f"{option} is for measuring; add --measure")
    if options.measure and options.measured:
        raise BadRequestError("--measured prints earlier samples, --measure takes new ones; give one of them")
    if options.measure and not names:
        raise BadRequestError(f"--measure needs names of figures, or '{MISSING}', or 'all'")
    if options.measured and not options.measured.is_dir():
        raise BadRequestError(f"{options.measured} is no folder of samples")
    for option, value in (("--side", options.side), ("--time-limit", options.time_limit)):
        if value is not None and not value > 0:
            raise BadRequestError(f"{option} must be positive, not {value:g}")


def measured_figure(name: str) -> Figure:
    """Return the figure of this name; raise BadRequestError if the table is computed and not measured."""
    found = FIGURES.get(find_table_name(name, NAMES))
    if found is None:
        raise BadRequestError(f"{name} is computed, not measured; measured are {', '.join(FIGURES)}")
    return found


# ---- figures from earlier samples


def recorded_tables(names: Sequence[str], options: argparse.Namespace) -> tuple[list[PaperTable], int]:
    """Return each published and computed table with the recorded samples, and the exit code."""
    folders = [options.measured] if options.measured else sorted(RESULTS_FOLDER.glob("*/paper"))
    tables = []
    for name in names:
        recorded = list(_recorded_results(name, folders)) if name in FIGURES else []
        if name in FIGURES and options.measured and not recorded and options.names != ["all"]:
            print(f"{COMMAND}: no samples of {name} in {options.measured}", file=sys.stderr)
        tables.append(table_of(name, *recorded))
    return tables, 0


def _recorded_results(name: str, folders: Iterable[Path]) -> Iterator[Results]:
    """Yield the results of a figure's experiment in these folders; raise BadRequestError for a damaged file."""
    for folder in folders:
        path = folder / f"{FIGURES[name].experiment.name}.json"
        try:
            if has_results(path):
                yield read_results(path)
        except DamagedSamplesError as error:
            raise BadRequestError(str(error)) from None


def table_of(name: str, *recorded: Results) -> PaperTable:
    """Return a figure's table with these results; without results the computed table, if there is one."""
    if name in FIGURES and (recorded or name not in PAPER_TABLES):
        return figure_table(FIGURES[name], *recorded)
    return computed_table(name)


# ---- measuring


def measured_tables(names: Sequence[str], options: argparse.Namespace) -> tuple[list[PaperTable], int]:
    """Measure the figures among these names, recorded or not; return all tables and the exit code."""
    figures = [FIGURES[name] for name in names if name in FIGURES] or [measured_figure(names[0])]
    session = measuring_session(options)
    code = session.measure(session.experiments_of(figures), anew=True)
    results = {name: session.results.get(FIGURES[name].experiment.name) for name in names if name in FIGURES}
    return [table_of(name, *filter(None, [results.get(name)])) for name in names], code


def missing_experiments(figures: Sequence[Figure], options: argparse.Namespace) -> tuple[list[PaperTable], int]:
    """Return the table of incomplete experiments, and the exit code; --measure measures them."""
    session = measuring_session(options)
    missing = session.missing(figures)
    code = session.measure(missing, anew=False) if options.measure else 0
    return [missing_table(missing, session)], code


def measuring_session(options: argparse.Namespace) -> Session:
    """Return the session on the device and in the folder of these options."""
    try:
        bench = bench_of(options.device or "cpu")
        if bench.on_host and options.measure:
            check_blas_kernel(options)
    except (ValueError, SlowKernelError) as error:
        raise BadRequestError(str(error)) from None
    folder = options.output or Path("results") / bench.folder / "paper"
    return Session(bench, folder, options.side, TimeLimit(options.time_limit))


@dataclass
class Session:
    """A device, the folder of its samples, and the measurements of this call."""

    bench: Bench
    folder: Path
    side: int | None
    limit: TimeLimit
    results: dict[str, Results] = field(default_factory=dict)  # by experiment
    done: Counter[str] = field(default_factory=Counter)  # measured parts, by experiment
    left: Counter[str] = field(default_factory=Counter)  # parts that failed or had no time, by experiment
    failed: bool = False

    def experiments_of(self, figures: Sequence[Figure]) -> list[Progress]:
        """Return the experiments of these figures, recorded or not."""
        experiments = {figure.experiment.name: figure.experiment for figure in figures}
        with _damage_reported():
            return [experiment_progress(x, self.bench, self.folder, self.side, anew=True) for x in experiments.values()]

    def missing(self, figures: Sequence[Figure] = ()) -> list[Progress]:
        """Return the incomplete experiments of these figures in their order, or of all figures by their worth."""
        named = {figure.experiment.name: figure.experiment for figure in figures}
        with _damage_reported():
            found = unfinished_experiments((named or EXPERIMENTS).values(), self.bench, self.folder, self.side)
        return found if named else sorted_by_worth(found)

    def measure(self, experiments: Sequence[Progress], anew: bool) -> int:
        """Measure all parts of these experiments (anew), or the missing parts; return the exit code."""
        self._check_folder()
        try:
            for progress in experiments:
                self._measure_experiment(progress, anew)
        except KeyboardInterrupt:
            print(f"{COMMAND}: interrupted; finished parts are in {self.folder}", file=sys.stderr)
            return EXIT_INTERRUPTED
        finally:
            self._draw_figures()
        if not_measured := sum(self.left.values()):
            print(f"{COMMAND}: {not_measured} parts were not measured; '{MISSING}' measures them", file=sys.stderr)
        return int(self.failed)

    def _measure_experiment(self, progress: Progress, anew: bool) -> None:
        name, parts = progress.experiment.name, progress.parts if anew else progress.missing
        self.left[name] = len(parts)
        for outcome in measured_parts(progress, self.bench, parts, self.limit, command_line_words()):
            _print_outcome(progress, outcome)
            self.failed |= bool(outcome.failed)
            if not outcome.failed:
                self.results[name] = outcome.results
                self.done[name] += 1
                self.left[name] -= 1

    def _check_folder(self) -> None:
        """Raise BadRequestError before measuring if the folder cannot be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadRequestError(f"cannot write to {self.folder}: {error.strerror}") from None
        if not os.access(self.folder, os.W_OK):
            raise BadRequestError(f"cannot write to {self.folder}")

    def _draw_figures(self) -> None:
        """Save pictures of the measured figures, if Matplotlib is installed."""
        folder = self.folder / "report"
        for figure in FIGURES.values():
            if (results := self.results.get(figure.experiment.name)) is not None:
                try:
                    picture = draw_figure(figure, results)
                except ModuleNotFoundError:
                    return
                folder.mkdir(exist_ok=True)
                picture.savefig(folder / f"{figure.name}.png", dpi=120)


@contextmanager
def _damage_reported() -> Iterator[None]:
    """Turn the error of a damaged file of samples into a BadRequestError."""
    try:
        yield
    except DamagedSamplesError as error:
        raise BadRequestError(f"{error}; move the file away, and its experiment is measured anew") from None


def _print_outcome(progress: Progress, outcome: Outcome) -> None:
    """Report a failed part; on a terminal, report each finished part too."""
    about = ", ".join(map(str, outcome.part.about))
    name = f"{progress.experiment.name}{f' ({about})' if about else ''}"
    if outcome.failed:
        print(f"{COMMAND}: {name} failed: {outcome.failed}", file=sys.stderr)
    elif sys.stderr.isatty():
        print(f"{name}: {outcome.seconds:.1f} s", file=sys.stderr)


def missing_table(missing: Sequence[Progress], session: Session) -> PaperTable:
    """Return a row for each experiment that was incomplete when this call began."""
    rows = tuple(
        (
            progress.experiment.name,
            " ".join(name for name, figure in FIGURES.items() if figure.experiment is progress.experiment),
            len(progress.parts),
            len(progress.missing),
            session.done[progress.experiment.name],
        )
        for progress in missing
    )
    notes: tuple[str, ...] = (
        f"samples in {session.folder}. `missing --measure` measures in this order: as named behind `missing`, or else "
        "the papers' figures first, the shortest first. Each part is written when it is done, so that the next call "
        "goes on after an interrupt or a --time-limit.",
    )
    if not rows:
        notes = ("Every part of these experiments was measured on this device.", *notes)
    columns = "experiment", "figures", "parts", "missing", "measured now"
    return PaperTable("missing", "what of the experiments was not measured on this device", columns, rows, notes)
