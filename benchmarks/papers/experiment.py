"""Experiments: measured part by part, written after each part, never measured twice, within a time limit.

A row has a key and quantities, each one number or several samples. A part is the set of rows that are measured
together, such as all plans at one size; a file holds all rows of a part or none. Sizes, and thresholds that belong to a
size, are the paper's, scaled to the device. A row's key has the paper's size.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.papers.bench import Bench, PlannedBench
from fmm.config.store import write_file
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem

Key = tuple[str | int | float, ...]
Numbers = Mapping[Key, float]
# "key": the key as a list; "run": the number of the run, if it is not the first; and the quantities
Row = dict[str, Any]
Products = tuple[tuple[Plan, Problem], ...]
PACKED_SUFFIX = ".gz"


@dataclass(frozen=True)
class ExperimentPart:
    """Some rows of an experiment, with their products and work."""

    about: Key  # the values of the experiment's `by` that its rows share
    rows: Callable[[], Iterable[Row]]
    products: Products = ()  # its products, which are compiled ahead
    work: float = 0.0  # approximate flops, by which a time limit decides


@dataclass(frozen=True)
class Experiment:
    """A measurement for one or more figures; its samples are in results/<device>/paper/<name>.json."""

    name: str
    keys: tuple[str, ...]
    side: int  # the paper's largest side
    parts: Callable[[Bench, float], Iterable[ExperimentPart]]  # scale: the ratio of the measured sides to the paper's
    by: tuple[str, ...] = ()  # the keys that distinguish its parts; none: it has one part

    def about(self, key: Key) -> Key:
        """Return the values that identify the part of a row."""
        return tuple(key[self.keys.index(name)] for name in self.by)


def products_of(plans: Iterable[Plan], side: int, dtype: str) -> Products:
    """Return the products of square matrices by those plans that accept the type."""
    return tuple((plan, Problem(side, side, side, dtype)) for plan in plans if plan.accepts_type(dtype))


def one_part(measure: Callable[[Bench, float], Iterable[Row]]) -> Callable[[Bench, float], Iterable[ExperimentPart]]:
    """Return the `parts` of an experiment that has one part."""
    return lambda bench, scale: (ExperimentPart((), lambda: measure(bench, scale)),)


@dataclass(frozen=True)
class Results:
    """The rows of an experiment, and the environment of each run that measured them."""

    runs: tuple[Mapping[str, Any], ...]
    scale: float
    rows: Mapping[Key, Row]

    @property
    def environment(self) -> Mapping[str, Any]:
        """The environment of the first run; later runs were on the same device."""
        return self.runs[0] if self.runs else {}

    def numbers(self, quantity: str) -> Numbers:
        """Return one quantity by key, as the median of its samples.

        Rows without the quantity, such as those of failed plans, are omitted.
        """
        found = {key: row.get(quantity) for key, row in self.rows.items()}
        return {key: median(x) if isinstance(x, list) else x for key, x in found.items() if x is not None}

    def with_part(self, experiment: Experiment, part: ExperimentPart, rows: Iterable[Row]) -> Results:
        """Return the results with these rows, of the newest run, instead of the part's present rows."""
        newest = len(self.runs) - 1
        others = {key: row for key, row in self.rows.items() if experiment.about(key) != part.about}
        new = {tuple(row["key"]): {**row, **({"run": newest} if newest else {})} for row in rows}
        return Results(self.runs, self.scale, {**others, **new})

    def without_old_runs(self) -> Results:
        """Return the results without the runs that have no row left."""
        used = sorted({row.get("run", 0) for row in self.rows.values()})
        number = {run: i for i, run in enumerate(used)}
        rows = {}
        for key, row in self.rows.items():
            run = number[row.get("run", 0)]
            rows[key] = {name: x for name, x in row.items() if name != "run"} | ({"run": run} if run else {})
        return Results(tuple(self.runs[run] for run in used), self.scale, rows)


# ---- files


def write_results(results: Results, experiment: Experiment, path: Path) -> None:
    """Write the results as JSON, one line per row; replace an older file whole or not at all."""
    found = results.without_old_runs()
    head: dict[str, Any] = {"experiment": experiment.name, "environment": dict(found.environment), "scale": found.scale}
    if found.runs[1:]:
        head["later runs"] = [dict(run) for run in found.runs[1:]]
    rows = ",\n".join(json.dumps(row) for row in found.rows.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, f'{json.dumps(head)[:-1]}, "rows": [\n{rows}\n]}}\n')
    packed_path(path).unlink(missing_ok=True)


class DamagedSamplesError(ValueError):
    """A file of samples cannot be read."""


def read_results(path: Path) -> Results:
    """Read a file of samples, or the file packed by `gzip`."""
    try:
        text = path.read_bytes() if path.is_file() else gzip.decompress(packed_path(path).read_bytes())
        found = json.loads(text)
        rows = {tuple(row["key"]): row for row in found["rows"]}
        return Results((found["environment"], *found.get("later runs", ())), found["scale"], rows)
    except (ValueError, KeyError, TypeError, EOFError, gzip.BadGzipFile) as error:
        raise DamagedSamplesError(f"{path} is damaged: {type(error).__name__}: {error}") from None


def packed_path(path: Path) -> Path:
    """Return the name of the packed file."""
    return path.with_name(path.name + PACKED_SUFFIX)


def has_results(path: Path) -> bool:
    return path.is_file() or packed_path(path).is_file()


# ---- measuring part by part

OWN_PREFIX = "error-"  # begins the names of fmm's own experiments; the others are figures of papers
SHORT_PART_SECONDS = 0.3  # expected seconds of the shortest part whose time corrects the expected times of other parts


class TimeLimit:
    """The time that is left for parts, by their work, the device's speed, and the times of the parts so far."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock, self.begin = seconds, clock, clock()
        self.expected = self.taken = 0.0

    def begins(self) -> None:
        """Begin another experiment, which has no measured parts yet."""
        self.expected = self.taken = 0.0

    @property
    def left(self) -> float:
        return float("inf") if self.seconds is None else self.seconds - (self.clock() - self.begin)

    def allows(self, expected: float) -> bool:
        slower = self.taken / self.expected if self.expected else 1.0
        return self.left > 0 and expected * max(slower, 1.0) <= self.left

    def took(self, expected: float, seconds: float) -> None:
        if expected >= SHORT_PART_SECONDS:
            self.expected, self.taken = self.expected + expected, self.taken + seconds


@dataclass(frozen=True)
class Progress:
    """An experiment's file, the results in it, and all of its parts."""

    experiment: Experiment
    path: Path
    results: Results
    parts: tuple[ExperimentPart, ...]

    @property
    def missing(self) -> tuple[ExperimentPart, ...]:
        done = {self.experiment.about(key) for key in self.results.rows}
        return tuple(part for part in self.parts if part.about not in done)

    @property
    def work(self) -> float:
        return sum(part.work for part in self.missing)


def experiment_progress(experiment: Experiment, bench: Bench, folder: Path, side: int | None, anew: bool) -> Progress:
    """Return the progress of an experiment by its file in this folder, at the scale of the file.

    With `anew`, measured parts replace recorded ones; if the scale differs from the file's, all recorded parts are
    dropped.
    """
    path = folder / f"{experiment.name}.json"
    old = read_results(path) if has_results(path) else None
    scale = min((side or min(bench.side, experiment.side)) / experiment.side, 1.0)
    if old is None or (anew and old.scale != scale):
        old = Results((), scale, {})
    return Progress(experiment, path, old, tuple(experiment.parts(bench, old.scale)))


def unfinished_experiments(
    experiments: Iterable[Experiment], bench: Bench, folder: Path, side: int | None
) -> list[Progress]:
    """Return the experiments with parts that were not measured on this device."""
    every = [experiment_progress(x, bench, folder, side, anew=False) for x in experiments]
    return [progress for progress in every if progress.missing]


def sorted_by_worth(found: Iterable[Progress]) -> list[Progress]:
    """Return the experiments in the order of measuring: the papers' figures before fmm's own, the shortest first."""
    return sorted(found, key=lambda x: (x.experiment.name.startswith(OWN_PREFIX), x.work))


@dataclass(frozen=True)
class Outcome:
    """The end of a part: the experiment's results with its rows, or the reason of its failure."""

    part: ExperimentPart
    results: Results
    seconds: float
    failed: str = ""


def measured_parts(
    progress: Progress, bench: Bench, parts: Sequence[ExperimentPart], limit: TimeLimit, command: list[str]
) -> Iterator[Outcome]:
    """Measure these parts within the time limit; write the file after each part.

    A part that fails does not keep the others from being measured.
    """
    if not parts or limit.left <= 0:
        return
    old = progress.results
    results = Results((*old.runs, bench.environment_record(command)), old.scale, old.rows)
    limit.begins()
    bench.prepare([x for part in parts for x in part.products])
    for part in parts:
        expected, start = part.work / bench.speed, limit.clock()
        if not limit.allows(expected):
            continue
        rows, failed = _rows_of(part)
        bench.free()
        if not failed:
            limit.took(expected, limit.clock() - start)
            results = results.with_part(progress.experiment, part, rows)
            write_results(results, progress.experiment, progress.path)
        yield Outcome(part, results, limit.clock() - start, failed)


def _rows_of(part: ExperimentPart) -> tuple[list[Row], str]:
    """Return the part's rows and an empty text; or no rows and the reason."""
    try:
        return list(part.rows()), ""
    except Exception as error:  # errors of plans, compilers and devices are reported, and the next part runs
        return [], f"{type(error).__name__}: {error}"


def measured_now(experiment: Experiment, bench: Bench, side: int, command: list[str]) -> Results:
    """Measure all parts, with the paper's largest side scaled to `side`; write no file."""
    results = Results((bench.environment_record(command),), min(side / experiment.side, 1.0), {})
    for part in experiment.parts(bench, results.scale):
        results = results.with_part(experiment, part, part.rows())
        bench.free()
    return results


def planned_parts(experiment: Experiment, scale: float, on_host: bool = False) -> tuple[ExperimentPart, ...]:
    """Return the parts of an experiment without a device."""
    bench: Any = PlannedBench(on_host)
    return tuple(experiment.parts(bench, scale))
