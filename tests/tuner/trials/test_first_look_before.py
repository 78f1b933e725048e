"""Which first look counts as a tuning's own: the last one before it, of the same type, card and libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fmm.tuner.trials.record import RecordedTuning, Trial, TuningHeader, first_look_trials

CARD: Mapping[str, Any] = {"uuid": "a", "clocks.sm": "1500"}
KEY = "cuda-9.0-132sm-nvidia-h200"


def header(run: str, effort: str = "default", **other: Any) -> TuningHeader:
    settings = {"dtype": other.pop("dtype", "float32"), "effort": effort, "shapes": []}
    known = {"device": KEY, "versions": {"cuda": "13"}, "conditions": CARD, "command": "fmm-tune"}
    return TuningHeader(run=run, settings=settings, started="", **{**known, **other})


def tuning(run: str, effort: str = "coarse", **other: Any) -> RecordedTuning:
    trial = Trial(run, "rates", (8, 8, 8), "float32", "vendor", "whole", 0, 0, 1.0, 0.1)
    return RecordedTuning(header(run, effort, **other), (trial,), False)


def runs(found: tuple[Trial, ...]) -> list[str]:
    return [trial.run for trial in found]


def test_the_last_first_look_before_a_tuning_counts() -> None:
    tunings = [tuning("old"), tuning("new", conditions={**CARD, "clocks.sm": "900"}), tuning("this", "default")]
    assert runs(first_look_trials([*tunings, tuning("later")], tunings[-1].header)) == ["new"]
    assert runs(first_look_trials(tunings[:2], header("not yet on record"))) == ["new"]


@pytest.mark.parametrize(
    "other",
    [
        {"effort": "quick"},
        {"dtype": "float64"},
        {"device": "cuda-8.0-108sm"},
        {"versions": {"cuda": "12"}},
        {"conditions": {**CARD, "uuid": "b"}},
        {"command": "fmm-tune --effort quick"},
    ],
)
def test_another_kind_of_tuning_does_not(other: dict[str, Any]) -> None:
    assert first_look_trials([tuning("first", **other)], header("this")) == ()


def test_a_first_look_has_none_before_it() -> None:
    assert first_look_trials([tuning("first")], header("second", "coarse")) == ()


def test_who_resumes_counts_what_an_earlier_command_measured() -> None:
    """Who does not, measures all anew."""
    again = [header("this", command=f"fmm-tune --dtype float32{way}") for way in (" --resume", " --fresh", "")]
    assert [runs(first_look_trials([tuning("first")], x)) for x in again] == [["first"], [], []]
