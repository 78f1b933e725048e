"""An experiment measures, part by part; its results are rows, which are kept in a file as soon as a part is done.

A row says what it is about (its key), and has quantities, each a number or the samples of one. Sizes, and thresholds
that belong to a size, are those of the paper, scaled to the device: a row keeps the paper's. A part is what is measured
in one go, such as all plans at one size, so that it is there as a whole or not at all.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.papers.bench import Bench
from fmm.config.store import replace_file
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem

Key = tuple[str | int | float, ...]
Numbers = Mapping[Key, float]
Row = dict[str, Any]  # "key": the key as a list, and the quantities; "run": of which run, if it is not the first
Products = tuple[tuple[Plan, Problem], ...]
PACKED = ".gz"


@dataclass(frozen=True)
class Part:
    """Some rows of an experiment, and what is known of them beforehand."""

    about: Key  # what its rows have under the experiment's `by`
    rows: Callable[[], Iterable[Row]]
    products: Products = ()  # what it multiplies, for whoever compiles ahead
    work: float = 0.0  # about so many flops, for whoever has little time


@dataclass(frozen=True)
class Experiment:
    """What is run, once for all figures that show it; its samples are in results/<device>/paper/<name>.json."""

    name: str
    keys: tuple[str, ...]
    side: int  # the largest of the paper
    parts: Callable[[Bench, float], Iterable[Part]]  # scale: of the sides that are run beside the paper's
    by: tuple[str, ...] = ()  # the keys that tell its parts apart; none: it is one part

    def about(self, key: Key) -> Key:
        """To which part a row belongs."""
        return tuple(key[self.keys.index(name)] for name in self.by)


def products_of(plans: Iterable[Plan], side: int, dtype: str) -> Products:
    """Of these plans on squares, those that multiply the type."""
    return tuple((plan, Problem(side, side, side, dtype)) for plan in plans if plan.takes_type(dtype))


def one_part(measure: Callable[[Bench, float], Iterable[Row]]) -> Callable[[Bench, float], Iterable[Part]]:
    """The parts of an experiment that is measured in one go."""
    return lambda bench, scale: (Part((), lambda: measure(bench, scale)),)


@dataclass(frozen=True)
class Results:
    """An experiment's rows, as measured now or as kept in a file; an environment for each run that they come from."""

    runs: tuple[Mapping[str, Any], ...]
    scale: float
    rows: Mapping[Key, Row]

    @property
    def environment(self) -> Mapping[str, Any]:
        """Of the first run; what later ones measured is on the same device."""
        return self.runs[0] if self.runs else {}

    def numbers(self, quantity: str) -> Numbers:
        """One quantity by key, the median of its samples; rows without it (a plan failed) are left out."""
        found = {key: row.get(quantity) for key, row in self.rows.items()}
        return {key: median(x) if isinstance(x, list) else x for key, x in found.items() if x is not None}

    def with_part(self, experiment: Experiment, part: Part, rows: Iterable[Row]) -> Results:
        """The same with these rows in the place of the part's, as those of the newest run."""
        newest = len(self.runs) - 1
        kept = {key: row for key, row in self.rows.items() if experiment.about(key) != part.about}
        new = {tuple(row["key"]): {**row, **({"run": newest} if newest else {})} for row in rows}
        return Results(self.runs, self.scale, {**kept, **new})

    def without_old_runs(self) -> Results:
        """The same, without runs of which no row is left."""
        used = sorted({row.get("run", 0) for row in self.rows.values()})
        number = {run: i for i, run in enumerate(used)}
        rows = {}
        for key, row in self.rows.items():
            run = number[row.get("run", 0)]
            rows[key] = {name: x for name, x in row.items() if name != "run"} | ({"run": run} if run else {})
        return Results(tuple(self.runs[run] for run in used), self.scale, rows)


# ---- files


def write_results(results: Results, experiment: Experiment, path: Path) -> None:
    """As JSON, a row a line; a file that is there is replaced as a whole."""
    found = results.without_old_runs()
    head: dict[str, Any] = {"experiment": experiment.name, "environment": dict(found.environment), "scale": found.scale}
    if found.runs[1:]:
        head["later runs"] = [dict(run) for run in found.runs[1:]]
    rows = ",\n".join(json.dumps(row) for row in found.rows.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, f'{json.dumps(head)[:-1]}, "rows": [\n{rows}\n]}}\n')
    packed(path).unlink(missing_ok=True)


class DamagedSamplesError(ValueError):
    """A file of samples that is none."""


def read_results(path: Path) -> Results:
    """From such a file, or from one that was packed since (`gzip FILE.json`)."""
    try:
        text = path.read_bytes() if path.is_file() else gzip.decompress(packed(path).read_bytes())
        found = json.loads(text)
        rows = {tuple(row["key"]): row for row in found["rows"]}
        return Results((found["environment"], *found.get("later runs", ())), found["scale"], rows)
    except (ValueError, KeyError, TypeError, EOFError, gzip.BadGzipFile) as error:
        raise DamagedSamplesError(f"{path} is damaged: {type(error).__name__}: {error}") from None


def packed(path: Path) -> Path:
    """The name of the file after gzip."""
    return path.with_name(path.name + PACKED)


def has_results(path: Path) -> bool:
    return path.is_file() or packed(path).is_file()
