"""Held-out shapes: how `python -m benchmarks regret` draws them, the recorded rows, and their summaries.

results/<device>/held-out.jsonl has a line for each run (its environment) and one for each shape. The packed file
held-out.jsonl.gz holds older lines, which are read first.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.matrices import OWN_ARITHMETIC
from benchmarks.tables.markdown import ran_old_kernel

HELD_OUT_FILE_NAME = "held-out.jsonl"
SHORTEST_SIDE, LONGEST_MIDDLE_SIDE, SHORTEST_THIN_SIDE = 1024, 4096, 128  # sides
SHORTEST_LARGE_SIDE = {"cpu": 3000, "cuda": SHORTEST_SIDE}  # a CPU gains nothing by plans for shorter sides
GRAM = "gram"  # products of a matrix and its transpose, of which a triangle is computed
SHAPE_COUNTS = {
    "cpu": {"middle": 20, "thin": 10, "large": 12, GRAM: 6},
    "cuda": {"middle": 60, "thin": 30, "large": 20},
}
FLOAT32_IEEE = f"float32{OWN_ARITHMETIC}"
TYPES = {
    "cpu": ("float64", "float32", "complex128", "complex64"),
    "cuda": (
        "float32",
        FLOAT32_IEEE,
        "float64",
        f"float64{OWN_ARITHMETIC}",
        "bfloat16",
        "float16",
        "tf32",
        "complex64",
        "complex128",
    ),
}
LARGEST_SIDES = {"cpu": 8192, "cuda": 20000}
DEFAULT_CALL = "default"  # the call that runs the chosen plan
REQUIRED_CALLS = ("vendor", DEFAULT_CALL)  # measured in every round, however slow
MIN_SHAPES = 2  # shapes of a type and kind that a page needs
# Goals: the mean and the least share of the best plan's speed, and the least speedup over the vendor.
GOAL_MEAN_SHARE, GOAL_LEAST_SHARE, GOAL_SPEEDUP = 0.97, 0.90, 0.98

Size = tuple[int, int, int]
Shape = tuple[str, str, Size]  # type, kind, sides
Seconds = Mapping[str, Sequence[float]]  # by the name of the call, round by round


@dataclass(frozen=True)
class Row:
    """A shape: fmm's choice, and the seconds of the default call, the vendor's call and every plan, by rounds.

    A plan that is far slower has one round.
    """

    config: int  # the number of the tuned config under which it was measured
    dtype: str
    kind: str
    size: Size
    chosen: str
    step: str
    seconds: Seconds
    untried: Sequence[str] = ()  # plans that the time limit left

    @property
    def speedup(self) -> float:
        """The speedup of the default call over the vendor's call."""
        return paired(self.seconds["vendor"], self.seconds["default"])

    @property
    def best(self) -> str:
        """The name of the fastest call."""
        return max(self.complete_calls, key=lambda name: paired(self.seconds["vendor"], self.seconds[name]))

    @property
    def best_plan(self) -> str:
        """The plan of the fastest call."""
        return self.chosen if self.best == DEFAULT_CALL else self.best

    @property
    def share_of_best(self) -> float:
        """The default call's speed as a share of the fastest call's, in the same rounds; 1 if it is the best."""
        if self.best == self.chosen:
            return 1.0
        return min(paired(self.seconds[self.best], self.seconds["default"]), 1.0)

    @property
    def complete_calls(self) -> list[str]:
        """The names of the calls with a sample in every round."""
        rounds = len(self.seconds["vendor"])
        return [name for name, own in self.seconds.items() if len(own) == rounds]

    @property
    def is_poor(self) -> bool:
        """True if the choice misses the goals."""
        return self.share_of_best < GOAL_LEAST_SHARE or self.speedup < GOAL_SPEEDUP

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.size))
        chosen = "" if self.best == self.chosen else f" / {self.chosen}"
        return (
            f"{self.dtype:12} {self.kind:6} {shape:22} {self.speedup:6.3f}  {self.share_of_best:.3f} of {self.best}"
            f"{chosen} ({self.step})"
        )


@dataclass(frozen=True)
class Run:
    """The shapes of one seed under one config, measured in one piece or in several."""

    config: int
    seed: int
    environment: Mapping[str, Any]  # of the last piece
    rows: list[Row]

    @property
    def shapes_origin(self) -> str:
        """The origin of the shapes. (Shapes drawn by the config's number are unknown while the config is made.)"""
        if self.seed == self.config:
            return "shapes by its config's own seed"
        given = "--seed" in self.environment.get("command", "")
        return f"shapes by seed {self.seed}" + ", as given" * given


def paired(base: Sequence[float], own: Sequence[float]) -> float:
    return median(b / o for b, o in zip(base, own, strict=True))


# ---- shapes


def element_type(dtype: str) -> str:
    """Return the element type without the suffix of its arithmetic."""
    return dtype.removesuffix(OWN_ARITHMETIC)


def drawn_shapes(kind: str, count: int, largest: int, seed: int, least: int = SHORTEST_SIDE) -> Iterator[Size]:
    """Yield shapes with sides spread evenly by logarithm, every second shape odd; one seed gives the same shapes."""
    rng = random.Random(f"{kind} {seed}")
    least, most = min(least, largest), min(LONGEST_MIDDLE_SIDE if kind == "middle" else largest, largest)
    for i in range(count):
        sides = [math.exp(rng.uniform(math.log(least), math.log(most))) for _ in range(3)]
        if kind == "thin":
            sides[rng.randrange(3)] = math.exp(rng.uniform(math.log(min(SHORTEST_THIN_SIDE, least)), math.log(least)))
        elif kind == GRAM:
            sides[2] = sides[0]
        m, k, n = (int(x) | 1 if i % 2 else max(int(x) // 16 * 16, 16) for x in sides)
        yield m, k, n


def config_number(path: Path) -> int:
    """Return a checksum of the config: shapes drawn by this seed are unknown while the model is fitted."""
    return zlib.crc32(path.read_bytes())


# ---- records


def recorded_runs(path: Path) -> list[Run]:
    """Return the recorded runs in order; the pieces of one seed and config are one run.

    Pieces with an old kernel of BLAS are left out: their baseline is too slow.
    """
    found: dict[tuple[int, int], Run] = {}
    rows: list[Row] = []
    for raw in _parsed_records(path):
        if "environment" in raw and ran_old_kernel(raw["environment"]):
            rows = []
        elif "environment" in raw:
            of = raw["settings"]["config"], raw["settings"]["seed"]
            rows = found[of].rows if of in found else []
            found[of] = Run(*of, raw["environment"], rows)
        elif "size" in raw:
            rows.append(_parsed_row(raw))
    return list(found.values())


def recorded_rows(path: Path, config: int | None = None) -> list[Row]:
    """Return the recorded rows of this config, or of all configs."""
    return [_parsed_row(raw) for raw in _parsed_records(path) if "size" in raw and config in (None, raw["config"])]


def _parsed_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield every line; a line that an interrupt cut short is left out."""
    for line in _recorded_lines(path):
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _parsed_row(raw: Mapping[str, Any]) -> Row:
    return Row(**{**raw, "size": tuple(raw["size"]), "untried": list(raw.get("untried", ()))})


def packed_path(path: Path) -> Path:
    """Return the path of the packed older lines."""
    return path.with_name(path.name + ".gz")


def _recorded_lines(path: Path) -> list[str]:
    """Return the packed lines and those after them; `path` may name the packed file, too."""
    path = path.with_suffix("") if path.suffix == ".gz" else path
    before = gzip.decompress(packed_path(path).read_bytes()).decode() if packed_path(path).exists() else ""
    return [*before.splitlines(), *(path.read_text(encoding="utf-8").splitlines() if path.exists() else ())]


def representative_run(runs: Sequence[Run]) -> Run:
    """Return the run that a page shows: the last run with enough shapes of every type and kind, else the largest."""
    groups = [[rows for *_, rows in group_rows(run.rows)] for run in runs]
    most = max(map(len, groups))
    complete_calls = [len(found) == most and all(len(rows) >= MIN_SHAPES for rows in found) for found in groups]
    enough = [run for run, is_whole in zip(runs, complete_calls, strict=True) if is_whole]
    return enough[-1] if enough else max(runs, key=lambda run: len(run.rows))


def rows_summary(rows: Sequence[Row]) -> dict[str, float | int]:
    """Return the numbers of shapes of one type and kind."""
    shares, speedups = [row.share_of_best for row in rows], [row.speedup for row in rows]
    return {
        "shapes": len(rows),
        "by_plans": sum(row.chosen != "vendor" for row in rows),
        "worth_a_plan": sum(row.best_plan != "vendor" for row in rows),
        "mean_share_of_best": mean(shares),
        "least_share_of_best": min(shares),
        "mean_speedup": mean(speedups),
        "least_speedup": min(speedups),
        "poor": sum(row.is_poor for row in rows),
    }


def group_rows(rows: Sequence[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    """Yield each type and kind with its rows."""
    for dtype, kind in sorted({(row.dtype, row.kind) for row in rows}):
        yield dtype, kind, [row for row in rows if (row.dtype, row.kind) == (dtype, kind)]


def summary_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each type and kind."""
    for dtype, kind, found in group_rows(rows):
        s = rows_summary(found)
        yield (
            f"{dtype:12} {kind:6} {s['shapes']:3} shapes, {s['by_plans']} by plans ({s['worth_a_plan']} worth one): "
            f"{s['mean_share_of_best']:.3f} of the best plan's speed, {s['least_share_of_best']:.3f} at least; "
            f"{s['mean_speedup']:.3f} times the vendor's, {s['least_speedup']:.3f} at least; {s['poor']} poor"
        )
