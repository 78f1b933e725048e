"""Models that the measurements admit as well as the fitted one, and the intervals of thresholds that come from them: on
a device that is a formula with noise, so that the truth is known."""

from __future__ import annotations

from functools import lru_cache
from math import exp, log
from typing import Any

import pytest

from fmm.config import schema
from fmm.config.schema import TAU_NAMES, ThresholdInterval, Thresholds, read_thresholds
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.problem import Problem
from fmm.tuner.devices.device import TimedRun
from fmm.tuner.devices.simulated import SIMULATED_CALIBRATION, SIMULATED_IDENTITY, SimulatedDevice
from fmm.tuner.findings.conclude import FITTED_STAGES
from fmm.tuner.findings.thresholds import add_threshold_intervals, compute_thresholds
from fmm.tuner.fit.model import Observation, fit_until_determined, observed_medians
from fmm.tuner.fit.parameters import FIT_PARAMETERS_BY_NAME
from fmm.tuner.fit.sampled import central_interval_95, sample_calibrations
from fmm.tuner.trials.journal import Journal
from fmm.tuner.tune_type import tune_type
from tests.support.configs import SMALL

TYPE = "float64"
POINTS = ("alpha", "pi", "n1", *TAU_NAMES)


@lru_cache(maxsize=32)
def tuned(seed: int = 0, noise: float = 0.01) -> tuple[dict[str, Any], list[Observation]]:
    """The section of a tuning, and what its model was fitted to."""
    journal = Journal("run", SimulatedDevice(seed=seed, noise=noise))
    section = tune_type(journal, TYPE, SMALL, ((4096, 4096, 4096),)).section
    assert section is not None
    return section, observed_medians(journal.recorded, FITTED_STAGES)


def model_of(section: dict[str, Any]) -> Calibration:
    found = schema.read_section(section, "test", SIMULATED_IDENTITY, TYPE).calibration
    assert found is not None
    return found


def thresholds_of(section: dict[str, Any]) -> Thresholds:
    found = read_thresholds(section["thresholds"])
    assert found is not None
    return found


@pytest.mark.slow
def test_each_parameter_lies_in_its_interval_in_95_percent_of_the_models() -> None:
    section, observed = tuned()
    models = sample_calibrations(model_of(section), TYPE, section["intervals"], observed)
    assert models == sample_calibrations(model_of(section), TYPE, section["intervals"], observed)
    assert {"rate.flops", "stream"} <= section["intervals"].keys()
    for name, (low, high) in section["intervals"].items():
        if FIT_PARAMETERS_BY_NAME[name].is_determined_by_interval(low, high):
            inside = sum(low <= FIT_PARAMETERS_BY_NAME[name].value_in(model, TYPE) <= high for model in models) / len(
                models
            )
            assert 0.9 <= inside <= 1.0, name


def test_what_is_not_determined_keeps_its_value() -> None:
    """Configs of older versions have intervals of all parameters, also of some that there are no more."""
    section, observed = tuned()
    known = {"stream": section["intervals"]["stream"], "rate.rows": [0.1, 1e4], "frayed": [0.5, 2.0]}
    models = sample_calibrations(model_of(section), TYPE, known, observed)
    assert len({model.stream for model in models}) > 10
    assert {model.require_rate(TYPE) for model in models} == {model_of(section).require_rate(TYPE)}
    assert sample_calibrations(model_of(section), TYPE, {}, observed) == ()


def test_a_tuning_writes_intervals_around_its_thresholds() -> None:
    found = thresholds_of(tuned()[0])
    assert set(POINTS) <= found.intervals.keys()
    for name in POINTS:
        value, (low, high) = found.threshold_value(name), found.intervals[name]
        assert value is not None and low is not None and low <= value * 1.001, name
        assert high is None or value <= high * 1.001, name
    assert found.intervals["n1"][0] != found.intervals["n1"][1]


@pytest.mark.slow
def test_more_noise_makes_wider_intervals() -> None:
    quiet, loud = (thresholds_of(tuned(noise=noise)[0]).intervals for noise in (0.01, 0.1))
    assert all(share(loud[name]) > 1.5 * share(quiet[name]) for name in ("alpha", "pi", "n1"))


def share(interval: ThresholdInterval) -> float:
    low, high = interval
    assert low is not None and high is not None
    return high / low - 1


@pytest.mark.slow
def test_epsilon_has_an_interval_where_it_is_determined() -> None:
    section, observed = tuned()
    model = model_of(section)
    point = int(compute_thresholds(model, TYPE).n1 or 0)
    measured = [((n, n, n), 0.9 if n < 2 * point else 1.1) for n in range(point, 4 * point, point // 4)]
    models = sample_calibrations(model, TYPE, section["intervals"], observed)
    found = add_threshold_intervals(compute_thresholds(model, TYPE, measured), model, TYPE, models, measured)
    low, high = found.intervals["epsilon"]
    assert found.epsilon is not None and low is not None and high is not None
    assert 0 <= low <= found.epsilon <= high and low < high
    gained = [(size, 1.1) for size, _ in measured]
    assert (
        "epsilon"
        not in add_threshold_intervals(compute_thresholds(model, TYPE, gained), model, TYPE, models, gained).intervals
    )


@pytest.mark.slow
def test_the_intervals_hold_the_truth_in_most_tunings() -> None:
    """Of the vendor's rate, of that of sums and of their ratio; of tau1 to a step of the grid of sides."""
    true, held = compute_thresholds(SIMULATED_CALIBRATION, TYPE), dict.fromkeys(("alpha", "pi", "n1", "tau1"), 0)
    for seed in range(12):
        found = thresholds_of(tuned(seed)[0])
        for name in held:
            (low, high), value = found.intervals[name], true.threshold_value(name)
            assert low is not None and high is not None and value is not None
            held[name] += low / 1.01 <= value <= high * 1.01
    assert min(held.values()) >= 9, held


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([float(x) for x in range(39)], (0.0, 38.0)),
        ([float(x) for x in range(399)], (9.0, 389.0)),
        ([*(float(x) for x in range(38)), None], (0.0, None)),
        ([None] * 39, (None, None)),
    ],
    ids=["few: the least and the largest", "many", "never in some", "never"],
)
def test_the_middle_of_draws(values: list[float | None], ends: ThresholdInterval) -> None:
    assert central_interval_95(values) == ends


@pytest.mark.parametrize("noise", [0.015, 0.02])
def test_an_interval_is_as_wide_as_students_t_says(noise: float) -> None:
    """Of one parameter, the rate, from 20 products that are alternately too slow and too fast.

    The robust loss makes the interval up to 1.5 times as wide.
    """
    on, count = datasheet_calibration("H200"), 20
    problems = [Problem(side, side, side, TYPE) for side in range(8192, 8192 + 512 * count, 512)]
    exact = [Observation(problem, TimedRun(), 1.0).predicted_seconds(on) for problem in problems]
    seconds = [t * exp(noise if i % 2 else -noise) for i, t in enumerate(exact)]
    observed = [Observation(p, TimedRun(), t) for p, t in zip(problems, seconds, strict=True)]
    free = [FIT_PARAMETERS_BY_NAME["rate.flops"]]
    low, high = fit_until_determined(on, TYPE, observed, free).intervals["rate.flops"]
    by_student = 2.09 * noise / count**0.5
    assert by_student < log(high / low) / 2 < 1.5 * by_student
