"""Replay recorded runs of regret: `python -m benchmarks replay [FILE ...]` prints today's choices on their shapes.

Nothing is measured and no device is needed: FILE is a held-out.jsonl (default: that of results/nvidia-h200/), and the
device is the GPU of its last run. For every shape the model chooses a plan, and the plan's time is looked up among the
recorded times; a plan without a recorded time is counted and not judged. The last lines compare, for each type of the
last run, the recorded choices with today's. `--half 0` and `--half 1` replay every second shape: one half can judge
decisions that were made on the other half.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import mean

from benchmarks.held_out import (
    GOAL_LEAST_SHARE,
    GOAL_SPEEDUP,
    HELD_OUT_FILE_NAME,
    Row,
    Run,
    recorded_runs,
    summary_lines,
)
from benchmarks.matrices import OWN_ARITHMETIC
from fmm.config import files
from fmm.config.files import SHIPPED_CONFIG
from fmm.config.schema import Tuning, read_section
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, choose, default_error_growth_limit
from fmm.problem import Problem
from fmm.runtime.decisions.early_declines import is_small_on_device
from fmm.runtime.devices import Device, gpu_from_description

ROOT = Path(__file__).parents[1]
H200_DEVICE = gpu_from_description("NVIDIA H200", "9.0", 132)
WORKSPACE_LIMIT = 64 << 30  # bytes


@dataclass(frozen=True)
class ReplayedShape:
    """A shape, the plan that is chosen today, and the plan's recorded seconds (None: not timed)."""

    row: Row
    plan: Plan
    seconds: Sequence[float] | None

    @property
    def as_chosen(self) -> Row | None:
        """The row as if the default call had run this plan; None if the plan was not timed."""
        if self.seconds is None:
            return None
        again = {**self.row.seconds, "default": self.seconds, str(self.plan): self.seconds}
        return replace(self.row, chosen=str(self.plan), seconds=again, step="replayed")


@lru_cache(maxsize=64)
def tuned_model(config: Path, dtype: str, device: Device = H200_DEVICE) -> Calibration:
    """Return the config's calibration of the type on this device; the datasheet's if the config has none."""
    raw = files.read_config(config).get(device.identity.key, {}).get(dtype)
    found: Tuning | None = raw and read_section(raw, dtype, device.identity, dtype)
    calibration = found.trusted_calibration if found else device.guess
    assert calibration is not None
    return calibration


def measured_device(runs: Sequence[Run]) -> Device:
    """Return the GPU of the last run."""
    about = runs[-1].environment
    return gpu_from_description(about["device"], about["compute_capability"], about["multiprocessors"])


def recorded_problem(row: Row) -> Problem:
    return Problem(*row.size, row.dtype.removesuffix(OWN_ARITHMETIC))


def recorded_limits(row: Row) -> Limits:
    return Limits(
        WORKSPACE_LIMIT, default_error_growth_limit(batches=True), emulation=not row.dtype.endswith(OWN_ARITHMETIC)
    )


def replayed_choice(row: Row, calibration: Calibration) -> ReplayedShape:
    """Return today's choice for a recorded shape; as in a call, the vendor computes small products without a search."""
    problem = recorded_problem(row)
    is_small = is_small_on_device(*problem.size, problem.itemsize)
    plan = VENDOR if is_small else choose(problem, calibration, recorded_limits(row)).best.plan
    return ReplayedShape(row, plan, recorded_seconds(row, plan))


def recorded_seconds(row: Row, plan: Plan) -> Sequence[float] | None:
    """Return a plan's seconds in the vendor's rounds; the only sample of a far slower plan is used for all rounds."""
    own = row.seconds.get(str(plan))
    rounds = len(row.seconds["vendor"])
    return own if own is None or len(own) == rounds else [own[0]] * rounds


# ---- the command


def replay_lines(found: Sequence[ReplayedShape]) -> Iterator[str]:
    """Yield the poor choices, the choices that were not timed, and a summary."""
    timed = [judged for x in found if (judged := x.as_chosen) is not None]
    yield from (str(row) for row in sorted(timed, key=lambda row: row.share_of_best) if row.is_poor)
    yield from (
        f"{x.row.dtype:12} {x.row.kind:6} {x.row.size}: {x.plan} was not timed; best {x.row.best}"
        for x in found
        if x.seconds is None
    )
    yield from summary_lines(timed)
    yield f"{len(timed)} of {len(found)} timed: {short_summary(timed)}"


def lines_by_type(found: Sequence[ReplayedShape]) -> Iterator[str]:
    """Yield a line for each type: the recorded choices, and today's."""
    for dtype in dict.fromkeys(x.row.dtype for x in found):
        own = [x for x in found if x.row.dtype == dtype]
        now = [judged for x in own if (judged := x.as_chosen) is not None]
        unknown = f", {len(own) - len(now)} not timed" if len(now) < len(own) else ""
        then = short_summary([x.row for x in own])
        yield f"{dtype:12} {len(own):3} shapes, then: {then}; now: {short_summary(now)}{unknown}"


def short_summary(rows: Sequence[Row]) -> str:
    """Return the summary of some rows in one line."""
    if not rows:
        return "none timed"
    return (
        f"{mean(row.share_of_best for row in rows):.3f} of the best plan's speed, "
        f"{sum(row.share_of_best < GOAL_LEAST_SHARE for row in rows)} below {GOAL_LEAST_SHARE}, "
        f"{sum(row.speedup < GOAL_SPEEDUP for row in rows)} below {GOAL_SPEEDUP} of the vendor's"
    )


def main(arguments: Sequence[str]) -> int:
    """Replay the files; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="*", default=[ROOT / "results" / "nvidia-h200" / HELD_OUT_FILE_NAME])
    parser.add_argument("--config", type=Path, default=SHIPPED_CONFIG, help="the models (default: the shipped ones)")
    parser.add_argument("--dtype", action="append", help="only this type (may be repeated)")
    parser.add_argument("--half", type=int, choices=(0, 1), help="every second shape alone")
    options = parser.parse_args(arguments)
    runs = [recorded_runs(path) for path in options.file]
    rows = [(row, measured_device(found)) for found in runs for run in found for row in run.rows]
    rows = [(row, on) for row, on in rows if not options.dtype or row.dtype in options.dtype]
    rows = rows if options.half is None else rows[options.half :: 2]
    cases = [(row, tuned_model(options.config, recorded_problem(row).dtype, on)) for row, on in rows]
    found = [replayed_choice(row, calibration) for row, calibration in cases]
    print(*replay_lines(found), sep="\n")
    last = {id(row) for each in runs for run in each[-1:] for row in run.rows}
    print("The last run alone:", *lines_by_type([x for x in found if id(x.row) in last]), sep="\n")
    return 0
