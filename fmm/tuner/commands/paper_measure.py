"""fmm-tune paper --measure: experiments on this device, written part by part, and what of them is missing."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.papers.bench import Bench, bench_of
from benchmarks.papers.experiment import (
    DamagedSamplesError,
    Outcome,
    Progress,
    Results,
    TimeLimit,
    by_worth,
    experiment_progress,
    measured_parts,
    missing_of,
)
from benchmarks.papers.figure import Figure, draw_figure
from benchmarks.papers.figures import EXPERIMENTS, FIGURES

from fmm.perfmodel.papers.table import Table
from fmm.tuner.trials.environment import typed_command
from fmm.tuner.tune import INTERRUPTED


class CannotMeasureError(Exception):
    """What was asked cannot be done; said before anything is measured."""


@dataclass
class Laboratory:
    """A device, where its samples are kept, and what was measured in this call."""

    bench: Bench
    folder: Path
    side: int | None
    limit: TimeLimit
    results: dict[str, Results] = field(default_factory=dict)  # by experiment
    done: Counter[str] = field(default_factory=Counter)  # parts of each
    left: Counter[str] = field(default_factory=Counter)  # for which there was no time, or that failed
    failed: bool = False

    def experiments_of(self, figures: Sequence[Figure]) -> list[Progress]:
        """The experiments of these figures, to be measured whatever is on record."""
        experiments = {figure.experiment.name: figure.experiment for figure in figures}
        with _samples_read():
            return [experiment_progress(x, self.bench, self.folder, self.side, anew=True) for x in experiments.values()]

    def missing(self, figures: Sequence[Figure] = ()) -> list[Progress]:
        """What of these figures is not measured, in their order; of all, in that in which it is worth the time."""
        named = {figure.experiment.name: figure.experiment for figure in figures}
        with _samples_read():
            found = missing_of((named or EXPERIMENTS).values(), self.bench, self.folder, self.side)
        return found if named else by_worth(found)

    def measure(self, experiments: Sequence[Progress], anew: bool) -> int:
        """All parts of these experiments, or those that are missing; the exit code."""
        self._check_folder()
        try:
            for progress in experiments:
                self._measure(progress, anew)
        except KeyboardInterrupt:
            print(f"fmm-tune paper: interrupted; what was finished is kept in {self.folder}", file=sys.stderr)
            return INTERRUPTED
        finally:
            self._draw()
        if not_measured := sum(self.left.values()):
            print(f"fmm-tune paper: {not_measured} parts were not measured; 'missing' measures them", file=sys.stderr)
        return int(self.failed)

    def _measure(self, progress: Progress, anew: bool) -> None:
        name, parts = progress.experiment.name, progress.parts if anew else progress.missing
        self.left[name] = len(parts)
        for outcome in measured_parts(progress, self.bench, parts, self.limit, typed_command()):
            _print_outcome(progress, outcome)
            self.failed |= bool(outcome.failed)
            if not outcome.failed:
                self.results[name] = outcome.results
                self.done[name] += 1
                self.left[name] -= 1

    def _check_folder(self) -> None:
        """Better now than after minutes of measuring."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotMeasureError(f"cannot write to {self.folder}: {error.strerror}") from None
        if not os.access(self.folder, os.W_OK):
            raise CannotMeasureError(f"cannot write to {self.folder}")

    def _draw(self) -> None:
        """Pictures of what was measured, if Matplotlib is there."""
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
def _samples_read() -> Iterator[None]:
    """While files are read that somebody may have changed."""
    try:
        yield
    except DamagedSamplesError as error:
        raise CannotMeasureError(f"{error}; put it away, and it is measured anew") from None


def _print_outcome(progress: Progress, outcome: Outcome) -> None:
    """That a part failed; and for somebody who watches, that one is done."""
    about = ", ".join(map(str, outcome.part.about))
    name = f"{progress.experiment.name}{f' ({about})' if about else ''}"
    if outcome.failed:
        print(f"fmm-tune paper: {name} failed: {outcome.failed}", file=sys.stderr)
    elif sys.stderr.isatty():
        print(f"{name}: {outcome.seconds:.1f} s", file=sys.stderr)


def laboratory(options: argparse.Namespace) -> Laboratory:
    """On the device and in the folder that were asked for."""
    for name, value in (("--side", options.side), ("--time-limit", options.time_limit)):
        if value is not None and not value > 0:
            raise CannotMeasureError(f"{name} must be positive, not {value:g}")
    try:
        bench = bench_of(getattr(options, "device", None) or "cpu")
    except ValueError as error:
        raise CannotMeasureError(str(error)) from None
    folder = options.output or Path("results") / bench.folder / "paper"
    return Laboratory(bench, folder, options.side, TimeLimit(options.time_limit))


def missing_table(before: Sequence[Progress], found: Laboratory) -> Table:
    """What was missing, and what is after this call."""
    rows = tuple(
        (x.experiment.name, _figures_of(x), len(x.parts), len(x.missing), found.done[x.experiment.name]) for x in before
    )
    notes = (
        f"samples in {found.folder}. In the order in which `fmm-tune paper missing --measure` measures them: as they "
        "are named behind `missing`, or else the papers' figures first, the shortest first. What is measured is "
        "written part by part, so that a call that is interrupted, or has a --time-limit, is gone on with by the next "
        "one.",
    )
    columns = "experiment", "figures", "parts", "missing", "measured now"
    return Table("missing", "what of the experiments was not measured on this device", columns, rows, notes)


def _figures_of(progress: Progress) -> str:
    return " ".join(name for name, figure in FIGURES.items() if figure.experiment is progress.experiment)
