"""Compare two tunings of one device: `python -m benchmarks compare CONFIG CONFIG`.

Over a grid of shapes, how many choices are equal, and by how much the others differ by either model, beside the noise;
and whether both found the same thresholds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.threshold_agreement import (
    NEAR,
    ComparedThreshold,
    Table,
    agreement_table,
    compared_thresholds,
    table_of,
)
from fmm.config.schema import ConfigError, Raw
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, default_error_growth
from fmm.perfmodel.predict import predict_from_work
from fmm.perfmodel.work import estimated_work
from fmm.problem import Problem, Shape
from fmm.runtime.decisions.decide import decide_by_model, decide_by_tuning
from fmm.tuner.commands.config_file import check_section, config_sections, group_by_device
from fmm.tuner.findings.model_in_use import ModelInUse, model_in_use
from fmm.tuner.findings.summary import share_text
from fmm.tuner.tune import output_path

SIDES = (1000, 1536, 2048, 3001, 4096, 6000, 8192, 12288, 16384)
LEAST = 0.95  # goal: share of equal choices
SHOWN_DIFFERENCES = 10  # sizes with different choices that are printed
ANY_MEMORY = 1 << 62  # bytes
NOT_IN_BOTH = "not in both; `fmm-tune --refit --refit-part thresholds` makes those of a config of its trials"


@dataclass(frozen=True)
class Difference:
    """A size with different choices of two configs, and the loss by the other's plan that each model predicts."""

    size: Shape
    first: str
    second: str
    first_loss: float | None  # as a share of the time of its own plan; None of a section without a model
    second_loss: float | None

    @property
    def losses(self) -> list[float]:
        return [loss for loss in (self.first_loss, self.second_loss) if loss is not None]

    @property
    def apart(self) -> float:
        """Return the relative extra time of the slower plan, by the model that predicts the larger one."""
        return max((max(loss, 1 / (1 + loss) - 1) for loss in self.losses), default=0.0)


@dataclass(frozen=True)
class Agreement:
    """The comparison of two sections: equal choices, and the largest predicted difference beside the noise."""

    device: str
    dtype: str
    shapes: int
    equal: int
    worst: float
    noise: float | None  # the larger of the two, None where neither measured it
    thresholds: tuple[ComparedThreshold, ...] = ()  # none if one of the two has none
    differences: tuple[Difference, ...] = ()  # those by which most is lost

    @property
    def holds(self) -> bool:
        return self.equal >= LEAST * self.shapes and self.worst <= (self.noise or 0.0)

    @property
    def thresholds_agree(self) -> bool:
        return all(x.agrees for x in self.thresholds)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of the JSON record."""
        return {**asdict(self), "thresholds": [x.fields for x in self.thresholds]}


def compared_choices(one: ModelInUse, two: ModelInUse, noise: float | None) -> Agreement:
    """Return the comparison of the runtime's choices by both models, on products of all SIDES."""
    dtype = one.tuned.dtype
    problems = [Problem(m, k, n, dtype) for m, k, n in product(SIDES, repeat=3)]
    others = [found for problem in problems if (found := _difference(one, two, problem)) is not None]
    shapes, equal = len(problems), len(problems) - len(others)
    worst = max((x.apart for x in others), default=0.0)
    lost = sorted(others, key=lambda x: max(x.losses, default=0.0), reverse=True)
    thresholds = compared_thresholds(one.tuned.thresholds, two.tuned.thresholds)
    return Agreement(
        one.tuned.identity.key, dtype, shapes, equal, worst, noise, thresholds, tuple(lost[:SHOWN_DIFFERENCES])
    )


def _difference(one: ModelInUse, two: ModelInUse, problem: Problem) -> Difference | None:
    """Return the difference of the choices, or None."""
    first, second = (_chosen(used, problem) for used in (one, two))
    if first == second:
        return None
    models = [used.calibration or used.tuned.calibration for used in (one, two)]
    losses = _loss(models[0], problem, first, second), _loss(models[1], problem, second, first)
    return Difference(problem.size, str(first), str(second), *losses)


def _chosen(used: ModelInUse, problem: Problem) -> Plan:
    calibration, tuned = used.calibration, used.tuned
    limits = Limits(ANY_MEMORY, default_error_growth(calibration is not None and calibration.batches))
    measured = decide_by_tuning(problem, limits, tuned, calibration, used.on_cpu)
    return (measured or decide_by_model(problem, limits, calibration, True, tuned.identity)).plan


def _loss(calibration: Calibration | None, problem: Problem, own: Plan, other: Plan) -> float | None:
    """Return the relative extra time of the other plan by this calibration.

    A loss is negative where the own plan was measured, or the other does not gain the margin.
    """
    if calibration is None:
        return None
    plans = (own, other)
    times = [predict_from_work(p, problem, estimated_work(p, problem), calibration).seconds for p in plans]
    return times[1] / times[0] - 1


# ---- the command


def main(arguments: Sequence[str]) -> int:
    """Compare two configs; return 1 if they choose differently beyond the noise, or share no device and type."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare", description=__doc__)
    parser.add_argument("configs", nargs=2, type=Path, metavar="CONFIG")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        found = list(_agreements(*(output_path(path) for path in options.configs)))
    except (ConfigError, OSError) as error:
        print(f"benchmarks compare: {error}", file=sys.stderr)
        return 1
    if not found:
        print("benchmarks compare: the configs have no device and type in common", file=sys.stderr)
        return 1
    alike, agree = all(a.holds for a in found), all(a.thresholds_agree for a in found)
    if options.json:
        print(json.dumps([a.fields for a in found]))
    else:
        print("\n".join([*(line for a in found for line in _lines(a)), *_verdicts(found, alike, agree)]))
    return int(not (alike and agree))


def _agreements(one: Path, two: Path) -> Iterator[Agreement]:
    first, second = (_by_device(path) for path in (one, two))
    for key, sections in first.items():
        others = second.get(key, {})
        for dtype in (x for x in sections if x in others):
            used = [model_in_use(key, dtype, some) for some in (sections, others)]
            noises = [some[dtype]["noise"] for some in (sections, others) if some[dtype]["noise"] is not None]
            yield compared_choices(used[0], used[1], max(noises, default=None))


def _by_device(path: Path) -> dict[str, dict[str, Raw]]:
    """Return the sections of a config; ConfigError if one is damaged."""
    sections = list(config_sections(path))
    for section in sections:
        check_section(*section)
    return group_by_device(sections)


def _lines(a: Agreement) -> Iterator[str]:
    share = f"{a.equal} of {a.shapes} choices are equal ({a.equal / a.shapes:.1%})"
    noise = share_text(a.noise)
    yield f"{a.device}, {a.dtype}: {share}, the others up to {a.worst:.1%} apart; noise floor {noise}"
    if a.thresholds:
        yield from (f"  {line}" for line in agreement_table(a.thresholds).lines)
    else:
        yield f"  thresholds: {NOT_IN_BOTH}"
    if a.differences:
        shown, others = len(a.differences), a.shapes - a.equal
        some = f", {shown} of {others} sizes" * (shown < others)
        yield f"  where they choose otherwise{some}, the largest loss first:"
        yield from (f"  {line}" for line in differences_table(a.differences).lines)


def differences_table(differences: Sequence[Difference]) -> Table:
    """Return a row for each size: both plans, and the loss by the other's plan that each model predicts."""
    head = "size", "first chooses", "second chooses", "lost by the first's model", "by the second's"
    return table_of(head, (_difference_row(x) for x in differences))


def _difference_row(x: Difference) -> tuple[str, ...]:
    losses = ("no model" if loss is None else f"{loss:+.1%}" for loss in (x.first_loss, x.second_loss))
    return " x ".join(map(str, x.size)), x.first, x.second, *losses


def _verdicts(found: Sequence[Agreement], alike: bool, agree: bool) -> Iterator[str]:
    """Yield the goals and whether they are met; of thresholds only if any were compared."""
    if any(a.thresholds for a in found):
        goal = f"the goal is each within {NEAR:.0%}, or with 95 % intervals that overlap"
        yield f"their thresholds {'' if agree else 'do not '}agree: {goal}"
    goal = f"the goal is at least {LEAST:.0%} equal choices, and the others within the noise"
    yield f"they {'' if alike else 'do not '}choose alike: {goal}"
