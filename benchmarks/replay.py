"""What the models of today would choose on shapes that were measured earlier: `python -m benchmarks.replay [FILE]`.

Nothing is measured and no device is needed. Of every shape of a held-out.jsonl (that of results/nvidia-h200/ unless
another is named) the model is asked for its choice, and what that plan took is looked up among what was tried there; a
choice that nobody tried is counted, and not judged. At the end there is a line for each type of the last run alone:
what its calls chose then, and what would be chosen now. `--config` names another config than the one that ships,
`--half 0` or `--half 1` every second shape alone: so that what was settled while looking at one half can be judged by
the other. `--terms` tells by how much predicted speedups are off, by type and family of plans. The device is the one
on which a file's last run was measured.
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
from fmm.config.files import SHIPPED
from fmm.config.schema import Tuned, read_section
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, choose, default_error_growth, rank_candidates
from fmm.perfmodel.work import are_rows_aligned
from fmm.problem import Problem
from fmm.runtime.devices import Device, gpu_from_description

ROOT = Path(__file__).parents[1]
H200 = gpu_from_description("NVIDIA H200", "9.0", 132)
ROOM = 64 << 30  # bytes of workspace


@dataclass(frozen=True)
class Replayed:
    """A shape, and what is chosen now; None for a plan that nobody tried there."""

    row: Row
    plan: Plan
    seconds: Sequence[float] | None

    @property
    def as_chosen(self) -> Row | None:
        """The row as if this plan had been the default call's."""
        if self.seconds is None:
            return None
        again = {**self.row.seconds, "default": self.seconds, str(self.plan): self.seconds}
        return replace(self.row, chosen=str(self.plan), seconds=again, step="replayed")


@lru_cache(maxsize=64)
def tuned_model(config: Path, dtype: str, device: Device = H200) -> Calibration:
    """What that config knows of the type on this device, or the datasheet."""
    raw = files.read_config(config).get(device.identity.key, {}).get(dtype)
    found: Tuned | None = raw and read_section(raw, dtype, device.identity, dtype)
    known = found.trusted if found else device.guess
    assert known is not None
    return known


def measured_device(runs: Sequence[Run]) -> Device:
    """The GPU on which the last of these was measured."""
    about = runs[-1].environment
    return gpu_from_description(about["device"], about["compute_capability"], about["multiprocessors"])


def problem_of(row: Row) -> Problem:
    return Problem(*row.size, row.dtype.removesuffix(OWN))


def limits_of(row: Row) -> Limits:
    return Limits(ROOM, default_error_growth(batches=True), emulation=not row.dtype.endswith(OWN))


def replayed(row: Row, known: Calibration) -> Replayed:
    plan = choose(problem_of(row), known, limits_of(row)).best.plan
    return Replayed(row, plan, tried(row, plan))


def tried(row: Row, plan: Plan) -> Sequence[float] | None:
    """A plan's seconds in the vendor's rounds; of one that was far slower, the first round's again and again."""
    own = row.seconds.get(str(plan))
    rounds = len(row.seconds["vendor"])
    return own if own is None or len(own) == rounds else [own[0]] * rounds


# ---- by how much predictions are off


def errors(row: Row, known: Calibration) -> Iterator[tuple[str, float]]:
    """Of every plan that was tried: its name, and the logarithm of its predicted speedup over the measured one."""
    problem = problem_of(row)
    plans = [Plan.parse(name) for name in row.seconds if name not in CALLS]
    for c in rank_candidates(problem, known, plans) if plans else ():
        own = tried(row, c.plan)
        if own is not None and c.plan != VENDOR:
            yield str(c.plan), -log(c.time) - log(paired(row.seconds["vendor"], own))


def term_table(asked: Sequence[tuple[Row, Calibration]]) -> Iterator[str]:
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row, known in asked:
        ends = "aligned" if are_rows_aligned(problem_of(row), 16) else "odd"
        for name, error in errors(row, known):
            found[row.dtype, ends, name].append(error)
    for (dtype, ends, name), all_of in sorted(found.items()):
        middle = median(all_of)
        spread = median(abs(x - middle) for x in all_of)
        yield f"{dtype:12} {ends:7} {name:60} {len(all_of):4}  {exp(middle) - 1:+7.1%}  spread {spread:6.1%}"


# ---- the command


def told(found: Sequence[Replayed], every: bool) -> Iterator[str]:
    """The choices that are poor, then what all come to."""
    known = [again for x in found if (again := x.as_chosen) is not None]
    yield from (str(row) for row in sorted(known, key=lambda row: row.share_of_best) if row.poor or every)
    yield from (
        f"{x.row.dtype:12} {x.row.kind:6} {x.row.size}: nobody tried {x.plan}; best {x.row.best}"
        for x in found
        if x.seconds is None
    )
    yield from summaries(known)
    yield f"{len(known)} of {len(found)} known: {in_short(known)}"


def told_by_type(found: Sequence[Replayed]) -> Iterator[str]:
    """A line for each type: what the calls that were measured chose, and what would be chosen now."""
    for dtype in dict.fromkeys(x.row.dtype for x in found):
        own = [x for x in found if x.row.dtype == dtype]
        now = [again for x in own if (again := x.as_chosen) is not None]
        unknown = f", {len(own) - len(now)} unknown" if len(now) < len(own) else ""
        yield f"{dtype:12} {len(own):3} shapes, then: {in_short([x.row for x in own])}; now: {in_short(now)}{unknown}"


def in_short(rows: Sequence[Row]) -> str:
    if not rows:
        return "nothing known"
    return (
        f"{mean(row.share_of_best for row in rows):.3f} of the best plan's speed, "
        f"{sum(row.share_of_best < WANTED_LEAST for row in rows)} below {WANTED_LEAST}, "
        f"{sum(row.speedup < WANTED_OF_VENDOR for row in rows)} below {WANTED_OF_VENDOR} of the vendor's"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="*", default=[ROOT / "results" / "nvidia-h200" / FILE])
    parser.add_argument("--config", type=Path, default=SHIPPED)
    parser.add_argument("--dtype", action="append", help="only this type (may be repeated)")
    parser.add_argument("--half", type=int, choices=(0, 1))
    parser.add_argument("--terms", action="store_true")
    parser.add_argument("--every", action="store_true", help="print good choices too")
    options = parser.parse_args(arguments)
    runs = [recorded_runs(path) for path in options.file]
    rows = [(row, measured_device(found)) for found in runs for run in found for row in run.rows]
    rows = [(row, on) for row, on in rows if not options.dtype or row.dtype in options.dtype]
    rows = rows if options.half is None else rows[options.half :: 2]
    asked = [(row, tuned_model(options.config, problem_of(row).dtype, on)) for row, on in rows]
    found = [replayed(row, known) for row, known in asked]
    print(*told(found, options.every), sep="\n")
    last = {id(row) for each in runs for run in each[-1:] for row in run.rows}
    print("The last run alone:", *told_by_type([x for x in found if id(x.row) in last]), sep="\n")
    if options.terms:
        print(*term_table(asked), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
