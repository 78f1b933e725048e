"""Measuring experiments part by part: what is done is written at once, is not measured again, and fits a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.papers.bench import Bench, PlannedBench
from benchmarks.papers.experiment import Experiment, Part, Results, Row, has_results, read_results, write_results

OURS = "error-"  # how the names of our own experiments begin; all others are figures of papers
SHORT = 0.3  # expected seconds of a part, from which on its real time says something about the others


class TimeLimit:
    """Is there time for a part? By its work, the device's speed, and what the experiment's parts really took so far."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock, self.begin = seconds, clock, clock()
        self.expected = self.taken = 0.0

    def begins(self) -> None:
        """Another experiment begins, and how long its parts really take is not known yet."""
        self.expected = self.taken = 0.0

    @property
    def left(self) -> float:
        return float("inf") if self.seconds is None else self.seconds - (self.clock() - self.begin)

    def has_room(self, expected: float) -> bool:
        slower = self.taken / self.expected if self.expected else 1.0
        return self.left > 0 and expected * max(slower, 1.0) <= self.left

    def took(self, expected: float, seconds: float) -> None:
        if expected >= SHORT:
            self.expected, self.taken = self.expected + expected, self.taken + seconds


@dataclass(frozen=True)
class Progress:
    """How far an experiment is measured: its file, what that has, and all of its parts."""

    experiment: Experiment
    path: Path
    results: Results
    parts: tuple[Part, ...]

    @property
    def missing(self) -> tuple[Part, ...]:
        done = {self.experiment.about(key) for key in self.results.rows}
        return tuple(part for part in self.parts if part.about not in done)

    @property
    def work(self) -> float:
        return sum(part.work for part in self.missing)


def experiment_progress(experiment: Experiment, bench: Bench, folder: Path, side: int | None, anew: bool) -> Progress:
    """How far the file in this folder has the experiment. It goes on at the scale at which it began. `anew`: parts that
    are measured take the place of old ones, and all of these go if the scale is to be another one."""
    path = folder / f"{experiment.name}.json"
    old = read_results(path) if has_results(path) else None
    scale = min((side or min(bench.side, experiment.side)) / experiment.side, 1.0)
    if old is None or (anew and old.scale != scale):
        old = Results((), scale, {})
    return Progress(experiment, path, old, tuple(experiment.parts(bench, old.scale)))


def missing_of(experiments: Iterable[Experiment], bench: Bench, folder: Path, side: int | None) -> list[Progress]:
    """Those of which parts have not been measured on this device."""
    every = [experiment_progress(x, bench, folder, side, anew=False) for x in experiments]
    return [progress for progress in every if progress.missing]


def by_worth(found: Iterable[Progress]) -> list[Progress]:
    """In the order in which they are worth the time: the papers' figures before our own, the shortest first."""
    return sorted(found, key=lambda x: (x.experiment.name.startswith(OURS), x.work))


@dataclass(frozen=True)
class Outcome:
    """What became of a part: the experiment's results with its rows; or why it failed, and the results without it."""

    part: Part
    results: Results
    seconds: float
    failed: str = ""


def measured_parts(
    progress: Progress, bench: Bench, parts: Sequence[Part], limit: TimeLimit, command: list[str]
) -> Iterator[Outcome]:
    """Measure these parts, as far as there is time for. After each of them the file has its rows; one that fails does
    not keep the others from being measured."""
    if not parts or limit.left <= 0:
        return
    old = progress.results
    results = Results((*old.runs, bench.environment(command)), old.scale, old.rows)
    limit.begins()
    bench.prepare([x for part in parts for x in part.products])
    for part in parts:
        expected, start = part.work / bench.speed, limit.clock()
        if not limit.has_room(expected):
            continue
        rows, failed = _rows_of(part)
        bench.free()
        if not failed:
            limit.took(expected, limit.clock() - start)
            results = results.with_part(progress.experiment, part, rows)
            write_results(results, progress.experiment, progress.path)
        yield Outcome(part, results, limit.clock() - start, failed)


def _rows_of(part: Part) -> tuple[list[Row], str]:
    """The part's rows; or none, and why."""
    try:
        return list(part.rows()), ""
    except Exception as error:  # of a plan, a compiler, a device: it is reported, and the next part has its turn
        return [], f"{type(error).__name__}: {error}"


def measured_now(experiment: Experiment, bench: Bench, side: int, command: list[str]) -> Results:
    """All parts, with the paper's largest side scaled to this one; no file is written."""
    results = Results((bench.environment(command),), min(side / experiment.side, 1.0), {})
    for part in experiment.parts(bench, results.scale):
        results = results.with_part(experiment, part, part.rows())
        bench.free()
    return results


def planned_parts(experiment: Experiment, scale: float, on_host: bool = False) -> tuple[Part, ...]:
    """The parts of an experiment, known without the device that is to measure them."""
    bench: Any = PlannedBench(on_host)
    return tuple(experiment.parts(bench, scale))
