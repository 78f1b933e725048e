"""Replay recorded runs: `python -m benchmarks replay [FILE ...]` shows what today's models would choose there.

Nothing is measured and no device is needed. For every shape of a held-out.jsonl (results/nvidia-h200/ by default) the
model chooses a plan, and the plan's time is looked up among the recorded ones; a choice that was not timed is counted
and not judged. At the end there is a line for each type of the last run: its recorded choices, and today's. `--config`
names another config than the shipped one, `--half 0` or `--half 1` every second shape alone, so that one half can
judge decisions made on the other. `--terms` prints the errors of predicted speedups by type and plan. The device is
the one of a file's last run.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log
from pathlib import Path
from statistics import mean, median

from benchmarks.held_out import (
    CALLS,
    FILE,
    OWN,
    WANTED_LEAST,
    WANTED_OF_VENDOR,
    Row,
    Run,
    paired,
    recorded_runs,
    summaries,
)
from fmm.config import files
from fmm.config.files import SHIPPED_CONFIG
from fmm.config.schema import Tuned, read_section
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, choose, default_error_growth, rank_candidates
from fmm.perfmodel.work import are_rows_aligned
from fmm.problem import Problem
from fmm.runtime.devices import Device, gpu_from_description

ROOT = Path(__file__).parents[1]
H200 = gpu_from_description("NVIDIA H200", "9.0", 132)
WORKSPACE_LIMIT = 64 << 30  # bytes


@dataclass(frozen=True)
class Replayed:
    """A shape, the plan chosen today, and the plan's recorded seconds (None: not timed)."""

    row: Row
    plan: Plan
    seconds: Sequence[float] | None

    @property
    def as_chosen(self) -> Row | None:
        """Return the row as if this plan had been the default call's."""
        if self.seconds is None:
            return None
        again = {**self.row.seconds, "default": self.seconds, str(self.plan): self.seconds}
        return replace(self.row, chosen=str(self.plan), seconds=again, step="replayed")


@lru_cache(maxsize=64)
def tuned_model(config: Path, dtype: str, device: Device = H200) -> Calibration:
    """Return the config's calibration of the type on this device, else the datasheet's."""
    raw = files.read_config(config).get(device.identity.key, {}).get(dtype)
    found: Tuned | None = raw and read_section(raw, dtype, device.identity, dtype)
    calibration = found.trusted if found else device.guess
    assert calibration is not None
    return calibration


def measured_device(runs: Sequence[Run]) -> Device:
    """Return the GPU of the last run."""
    about = runs[-1].environment
    return gpu_from_description(about["device"], about["compute_capability"], about["multiprocessors"])


def problem_of(row: Row) -> Problem:
    return Problem(*row.size, row.dtype.removesuffix(OWN))


def limits_of(row: Row) -> Limits:
    return Limits(WORKSPACE_LIMIT, default_error_growth(batches=True), emulation=not row.dtype.endswith(OWN))


def replayed(row: Row, calibration: Calibration) -> Replayed:
    plan = choose(problem_of(row), calibration, limits_of(row)).best.plan
    return Replayed(row, plan, recorded_seconds(row, plan))


def recorded_seconds(row: Row, plan: Plan) -> Sequence[float] | None:
    """Return a plan's seconds in the vendor's rounds; a far slower plan's only sample stands for all rounds."""
    own = row.seconds.get(str(plan))
    rounds = len(row.seconds["vendor"])
    return own if own is None or len(own) == rounds else [own[0]] * rounds


# ---- errors of predictions


def prediction_errors(row: Row, calibration: Calibration) -> Iterator[tuple[str, float]]:
    """Yield every timed plan, and the logarithm of its predicted speedup over the measured one."""
    problem = problem_of(row)
    plans = [Plan.parse(name) for name in row.seconds if name not in CALLS]
    for c in rank_candidates(problem, calibration, plans) if plans else ():
        own = recorded_seconds(row, c.plan)
        if own is not None and c.plan != VENDOR:
            yield str(c.plan), -log(c.time) - log(paired(row.seconds["vendor"], own))


def term_lines(cases: Sequence[tuple[Row, Calibration]]) -> Iterator[str]:
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row, calibration in cases:
        ends = "aligned" if are_rows_aligned(problem_of(row), 16) else "odd"
        for name, error in prediction_errors(row, calibration):
            found[row.dtype, ends, name].append(error)
    for (dtype, ends, name), all_of in sorted(found.items()):
        middle = median(all_of)
        spread = median(abs(x - middle) for x in all_of)
        yield f"{dtype:12} {ends:7} {name:60} {len(all_of):4}  {exp(middle) - 1:+7.1%}  spread {spread:6.1%}"


# ---- the command


def replay_lines(found: Sequence[Replayed], every: bool) -> Iterator[str]:
    """Yield the poor choices, the choices that were not timed, and a summary."""
    timed = [again for x in found if (again := x.as_chosen) is not None]
    yield from (str(row) for row in sorted(timed, key=lambda row: row.share_of_best) if row.poor or every)
    yield from (
        f"{x.row.dtype:12} {x.row.kind:6} {x.row.size}: {x.plan} was not timed; best {x.row.best}"
        for x in found
        if x.seconds is None
    )
    yield from summaries(timed)
    yield f"{len(timed)} of {len(found)} timed: {in_short(timed)}"


def lines_by_type(found: Sequence[Replayed]) -> Iterator[str]:
    """Yield a line for each type: the recorded choices, and today's."""
    for dtype in dict.fromkeys(x.row.dtype for x in found):
        own = [x for x in found if x.row.dtype == dtype]
        now = [again for x in own if (again := x.as_chosen) is not None]
        unknown = f", {len(own) - len(now)} not timed" if len(now) < len(own) else ""
        yield f"{dtype:12} {len(own):3} shapes, then: {in_short([x.row for x in own])}; now: {in_short(now)}{unknown}"


def in_short(rows: Sequence[Row]) -> str:
    """Return the summary of some rows in one line."""
    if not rows:
        return "none timed"
    return (
        f"{mean(row.share_of_best for row in rows):.3f} of the best plan's speed, "
        f"{sum(row.share_of_best < WANTED_LEAST for row in rows)} below {WANTED_LEAST}, "
        f"{sum(row.speedup < WANTED_OF_VENDOR for row in rows)} below {WANTED_OF_VENDOR} of the vendor's"
    )


def main(arguments: Sequence[str]) -> int:
    """Replay the files; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="*", default=[ROOT / "results" / "nvidia-h200" / FILE])
    parser.add_argument("--config", type=Path, default=SHIPPED_CONFIG)
    parser.add_argument("--dtype", action="append", help="only this type (may be repeated)")
    parser.add_argument("--half", type=int, choices=(0, 1))
    parser.add_argument("--terms", action="store_true")
    parser.add_argument("--every", action="store_true", help="print good choices too")
    options = parser.parse_args(arguments)
    runs = [recorded_runs(path) for path in options.file]
    rows = [(row, measured_device(found)) for found in runs for run in found for row in run.rows]
    rows = [(row, on) for row, on in rows if not options.dtype or row.dtype in options.dtype]
    rows = rows if options.half is None else rows[options.half :: 2]
    cases = [(row, tuned_model(options.config, problem_of(row).dtype, on)) for row, on in rows]
    found = [replayed(row, calibration) for row, calibration in cases]
    print(*replay_lines(found, options.every), sep="\n")
    last = {id(row) for each in runs for run in each[-1:] for row in run.rows}
    print("The last run alone:", *lines_by_type([x for x in found if id(x.row) in last]), sep="\n")
    if options.terms:
        print(*term_lines(cases), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
