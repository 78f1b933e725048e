"""Compare two tunings of one device: `python -m benchmarks agreement CONFIG CONFIG`.

Over a grid of shapes, the command prints how many choices are equal, how much time the other choices lose by
each model, and whether the two tunings found the same thresholds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

from fmm.config.schema import TAU_NAMES, ConfigError, JsonValue, ThresholdInterval, Thresholds
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, default_error_growth_limit
from fmm.perfmodel.predict import predict_from_work
from fmm.perfmodel.work import estimated_work
from fmm.problem import Problem, Shape
from fmm.runtime.decisions.decide import decide_by_model, decide_by_tuning
from fmm.tuner.commands.config_file import check_section, group_sections_by_device, read_config_sections
from fmm.tuner.findings.model_in_use import ModelInUse, model_in_use
from fmm.tuner.findings.summary import interval_text, percent_text, threshold_text
from fmm.tuner.findings.thresholds import WITHOUT_EMULATION
from fmm.tuner.tune import output_path

SIDES = (1000, 1536, 2048, 3001, 4096, 6000, 8192, 12288, 16384)  # sides of the grid of shapes
EQUAL_GOAL = 0.95  # goal: share of equal choices
THRESHOLD_GOAL = 0.1  # largest relative difference of thresholds that agree
SHOWN_DIFFERENCES = 10  # sizes with different choices that are printed
UNLIMITED = 1 << 62  # bytes of workspace
THRESHOLD_NAMES = ("alpha", "pi", "n1", *TAU_NAMES)
THRESHOLDS_NOT_IN_BOTH = "not in both; `fmm-tune --refit --refit-part thresholds` makes those of a config of its trials"


# Choices


@dataclass(frozen=True)
class Difference:
    """A size with different choices of two configs, and the loss by the other plan that each model predicts."""

    size: Shape
    first: str
    second: str
    first_loss: float | None  # as a share of the time of its own plan; None for a section without a model
    second_loss: float | None

    @property
    def losses(self) -> list[float]:
        return [loss for loss in (self.first_loss, self.second_loss) if loss is not None]

    @property
    def extra_time(self) -> float:
        """The relative extra time of the slower plan, by the model that predicts more."""
        return max((max(loss, 1 / (1 + loss) - 1) for loss in self.losses), default=0.0)


@dataclass(frozen=True)
class Agreement:
    """The comparison of two sections: equal choices, the largest predicted difference, and the noise."""

    device: str
    dtype: str
    shapes: int
    equal: int
    worst: float
    noise: float | None  # the larger noise of the two; None if neither measured it
    thresholds: tuple[ComparedThreshold, ...] = ()  # none if one of the two has none
    differences: tuple[Difference, ...] = ()  # the differences with the largest losses

    @property
    def holds(self) -> bool:
        return self.equal >= EQUAL_GOAL * self.shapes and self.worst <= (self.noise or 0.0)

    @property
    def thresholds_agree(self) -> bool:
        return all(x.agrees for x in self.thresholds)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the JSON record."""
        return {**asdict(self), "thresholds": [x.fields for x in self.thresholds]}


def compared_choices(one: ModelInUse, two: ModelInUse, noise: float | None) -> Agreement:
    """Compare the runtime's choices by two models, on products of all SIDES."""
    dtype = one.tuned.dtype
    problems = [Problem(m, k, n, dtype) for m, k, n in product(SIDES, repeat=3)]
    differences = [found for problem in problems if (found := _difference(one, two, problem)) is not None]
    worst = max((x.extra_time for x in differences), default=0.0)
    by_loss = sorted(differences, key=lambda x: max(x.losses, default=0.0), reverse=True)
    return Agreement(
        one.tuned.identity.key,
        dtype,
        len(problems),
        len(problems) - len(differences),
        worst,
        noise,
        compared_thresholds(one.tuned.thresholds, two.tuned.thresholds),
        tuple(by_loss[:SHOWN_DIFFERENCES]),
    )


def _difference(one: ModelInUse, two: ModelInUse, problem: Problem) -> Difference | None:
    """Return the difference of the two choices; None if they are equal."""
    first, second = (_chosen_plan(used, problem) for used in (one, two))
    if first == second:
        return None
    models = [used.calibration or used.tuned.calibration for used in (one, two)]
    losses = (
        _relative_extra_time(models[0], problem, first, second),
        _relative_extra_time(models[1], problem, second, first),
    )
    return Difference(problem.size, str(first), str(second), *losses)


def _chosen_plan(used: ModelInUse, problem: Problem) -> Plan:
    calibration, tuned = used.calibration, used.tuned
    limits = Limits(UNLIMITED, default_error_growth_limit(calibration is not None and calibration.batches))
    measured = decide_by_tuning(problem, limits, tuned, calibration, used.is_cpu)
    return (measured or decide_by_model(problem, limits, calibration, True, tuned.identity)).plan


def _relative_extra_time(calibration: Calibration | None, problem: Problem, own: Plan, other: Plan) -> float | None:
    """Return the relative extra time of the other plan by this calibration; None without a calibration.

    A loss is negative where the own plan was measured, or where the other plan gains less than the margin.
    """
    if calibration is None:
        return None
    plans = (own, other)
    times = [predict_from_work(p, problem, estimated_work(p, problem), calibration).predicted_seconds for p in plans]
    return times[1] / times[0] - 1


# Thresholds


@dataclass(frozen=True)
class ComparedThreshold:
    """One threshold of two tunings; None: the plan never pays."""

    name: str
    first: float | None
    second: float | None
    first_interval: ThresholdInterval | None  # of 95 %; None if the tuning recorded none
    second_interval: ThresholdInterval | None

    @property
    def difference(self) -> float | None:
        """The relative difference from the first value; None if the plan never pays by only one tuning."""
        if self.first is None or self.second is None:
            return 0.0 if self.first == self.second else None
        return self.second / self.first - 1

    @property
    def is_near(self) -> bool:
        return self.difference is not None and abs(self.difference) <= THRESHOLD_GOAL

    @property
    def overlaps(self) -> bool:
        """True if both intervals overlap. ("Never" is larger than all sides.)"""
        if self.first_interval is None or self.second_interval is None:
            return False
        ends = [[inf if x is None else x for x in ends] for ends in (self.first_interval, self.second_interval)]
        return max(low for low, _ in ends) <= min(high for _, high in ends)

    @property
    def agrees(self) -> bool:
        return self.is_near or self.overlaps

    @property
    def verdict(self) -> str:
        if self.is_near:
            return "agree"
        return "agree: the intervals overlap" if self.overlaps else "differ"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the JSON record."""
        return {**asdict(self), "difference": self.difference, "agrees": self.agrees}


def compared_thresholds(first: Thresholds | None, second: Thresholds | None) -> tuple[ComparedThreshold, ...]:
    """Compare the thresholds of two sections; return nothing if a section has none.

    Without a leaf that emulates, tau1 to tau3 are those without emulation, so tau1 to tau3 are compared with emulation
    only if both tunings or neither had such a leaf.
    """
    if first is None or second is None:
        return ()
    has_emulation = [bool(x.without_emulation) for x in (first, second)]
    names = [x for x in THRESHOLD_NAMES if x not in TAU_NAMES or has_emulation[0] == has_emulation[1]]
    intervals = [[x.intervals.get(name) for x in (first, second)] for name in names]
    with_emulation = [
        ComparedThreshold(name, first.threshold_value(name), second.threshold_value(name), *ends)
        for name, ends in zip(names, intervals, strict=True)
    ]
    without = (_without_emulation(name, first, second) for name in TAU_NAMES if any(has_emulation))
    return (*with_emulation, *without, *_measured_crossovers(first, second))


def _measured_crossovers(first: Thresholds, second: Thresholds) -> Iterator[ComparedThreshold]:
    """Yield the measured crossovers that both tunings have, by baseline."""
    for baseline in first.measured_taus.keys() & second.measured_taus.keys():
        for name in TAU_NAMES:
            one, other = (x.measured_taus[baseline].get(name) for x in (first, second))
            ends = [x.measured_intervals.get(baseline, {}).get(name) for x in (first, second)]
            if one is not None and other is not None:
                yield ComparedThreshold(f"{name} above {baseline}, measured", one, other, ends[0], ends[1])


def _without_emulation(name: str, first: Thresholds, second: Thresholds) -> ComparedThreshold:
    """Compare a threshold without emulation; a tuning without leaves that emulate has it as its only threshold."""
    label = WITHOUT_EMULATION.format(name)
    values = [
        x.without_emulation.get(name) if x.without_emulation else x.threshold_value(name) for x in (first, second)
    ]
    intervals = [x.intervals.get(label if x.without_emulation else name) for x in (first, second)]
    return ComparedThreshold(label, values[0], values[1], intervals[0], intervals[1])


# The command


def main(arguments: Sequence[str]) -> int:
    """Compare two configs; return 1 if they choose differently beyond the noise, or share no device and type."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks agreement", description=__doc__)
    parser.add_argument("configs", nargs=2, type=Path, metavar="CONFIG")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    try:
        found = list(_section_agreements(*(output_path(path) for path in options.configs)))
    except (ConfigError, OSError) as error:
        print(f"benchmarks agreement: {error}", file=sys.stderr)
        return 1
    if not found:
        print("benchmarks agreement: the configs have no device and type in common", file=sys.stderr)
        return 1
    choices_agree, thresholds_agree = all(a.holds for a in found), all(a.thresholds_agree for a in found)
    if options.json:
        print(json.dumps([a.fields for a in found]))
    else:
        verdicts = _verdict_lines(found, choices_agree, thresholds_agree)
        print("\n".join([*(line for a in found for line in _agreement_lines(a)), *verdicts]))
    return int(not (choices_agree and thresholds_agree))


def _section_agreements(one: Path, two: Path) -> Iterator[Agreement]:
    first, second = (_checked_sections(path) for path in (one, two))
    for key, sections in first.items():
        others = second.get(key, {})
        for dtype in (x for x in sections if x in others):
            used = [model_in_use(key, dtype, some) for some in (sections, others)]
            noises = [some[dtype]["noise"] for some in (sections, others) if some[dtype]["noise"] is not None]
            yield compared_choices(used[0], used[1], max(noises, default=None))


def _checked_sections(path: Path) -> dict[str, dict[str, JsonValue]]:
    """Return the sections of a config by device and type; raise ConfigError if one is damaged."""
    sections = list(read_config_sections(path))
    for section in sections:
        check_section(*section)
    return group_sections_by_device(sections)


def _agreement_lines(a: Agreement) -> Iterator[str]:
    share = f"{a.equal} of {a.shapes} choices are equal ({a.equal / a.shapes:.1%})"
    yield f"{a.device}, {a.dtype}: {share}; others differ by up to {a.worst:.1%}; noise floor {percent_text(a.noise)}"
    if a.thresholds:
        head = ("threshold", "first", "second", "difference", "verdict")
        yield from (f"  {line}" for line in aligned_lines([head, *map(_threshold_cells, a.thresholds)]))
    else:
        yield f"  thresholds: {THRESHOLDS_NOT_IN_BOTH}"
    if a.differences:
        shown, others = len(a.differences), a.shapes - a.equal
        some = f", {shown} of {others} sizes" * (shown < others)
        yield f"  where they choose otherwise{some}, the largest loss first:"
        head = ("size", "first chooses", "second chooses", "lost by the first's model", "by the second's")
        yield from (f"  {line}" for line in aligned_lines([head, *map(_difference_cells, a.differences)]))


def aligned_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows of cells, aligned by spaces."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _difference_cells(x: Difference) -> Sequence[str]:
    losses = ("no model" if loss is None else f"{loss:+.1%}" for loss in (x.first_loss, x.second_loss))
    return " x ".join(map(str, x.size)), x.first, x.second, *losses


def _threshold_cells(x: ComparedThreshold) -> Sequence[str]:
    difference = "" if x.difference is None else f"{x.difference:+.1%}"
    both = ((x.first, x.first_interval), (x.second, x.second_interval))
    cells = (
        " ".join(filter(None, (threshold_text(x.name, value), interval_text(x.name, ends)))) for value, ends in both
    )
    return x.name, *cells, difference, x.verdict


def _verdict_lines(found: Iterable[Agreement], choices_agree: bool, thresholds_agree: bool) -> Iterator[str]:
    """Yield the goals and whether they are met; the goal of thresholds only if any were compared."""
    if any(a.thresholds for a in found):
        goal = f"the goal is each within {THRESHOLD_GOAL:.0%}, or with 95 % intervals that overlap"
        yield f"their thresholds {'' if thresholds_agree else 'do not '}agree: {goal}"
    goal = f"the goal is at least {EQUAL_GOAL:.0%} equal choices, and the others within the noise"
    yield f"they {'' if choices_agree else 'do not '}choose alike: {goal}"
