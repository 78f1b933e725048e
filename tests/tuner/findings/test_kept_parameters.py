"""What a tuning did not determine is named, with its value, its unit, and whose value that is."""

from __future__ import annotations

import re
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from fmm.tuner.findings.described import described_rows
from fmm.tuner.findings.kept_parameters import described_kept

from fmm.config.schema import calibration_fields
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.default_calibration import cpu_calibration, datasheet_calibration
from fmm.tuner.fit.parameters import fixed_parameters, is_determined
from tests.support import configs as tuned

SHEET = datasheet_calibration("H200")
INTERVALS: dict[str, Any] = {"rate.flops": [1e13, 2e13], "stream": [1e12, 2e12]}


def sources(fitted: Calibration, dtype: str, guess: Calibration | None = SHEET) -> dict[str, str]:
    return {kept.name: kept.source for kept in fixed_parameters(INTERVALS, fitted, dtype, guess)}


def with_rate(fitted: Calibration, dtype: str, **fields: float) -> Calibration:
    rates = {**fitted.rates, dtype: replace(fitted.rate(dtype), **fields)}
    return replace(fitted, rates=MappingProxyType(rates))


DATASHEET = "datasheet of the H200"


def test_each_is_the_datasheets_or_neutral_or_nobodys() -> None:
    known = with_rate(replace(SHEET, host=3e-6), "float64", pipe=0.0, memory=1e13, tiled=0.0)
    found = sources(known, "float64")
    assert found["rate.fill"] == found["small"] == DATASHEET
    assert found["rate.pipe"] == found["rate.rows"] == "neutral"
    assert found["rate.memory"] == found["host"] == "not determined"
    assert not {"rate.flops", "stream", "rate.tiled", "rate.tiled_odd", "rate.waves", "idle", "parts"} & set(found)
    assert "rate.tiled_odd" in sources(with_rate(known, "float64", tiled=1.0), "float64")


def test_of_a_processor_they_are_built_in() -> None:
    found = sources(cpu_calibration(2), "float64", None)
    assert found["rate.fill"] == found["small"] == "built in" and found["sequential"] == "neutral"
    assert (
        not {"idle", "host", "parts"} & set(found)
        and sources(cpu_calibration(2), "complex128", None)["parts"] == "built in"
    )


def test_they_are_told_with_their_units() -> None:
    label, told = described_kept(INTERVALS, with_rate(SHEET, "float64", pipe=0.0), "float64", SHEET) or ("", "")
    assert label == "kept" and isinstance(told, str) and told.startswith("Not determined by these samples")
    neutral = next(group for group in told.split("; ") if "(neutral)" in group)
    assert "rate.pipe 0 steps of k" in neutral and "small 14.4 Mbytes" in told


def test_no_number_is_told_that_the_fit_did_not_find_and_nobody_printed() -> None:
    """The guess from which a fit began says nothing of the device, nor does a fitted value whose interval is wide."""
    known = with_rate(replace(SHEET, host=3e-6), "float64", memory=1.37e13, fill=9e7)
    loose = {**INTERVALS, "rate.fill": [1.0, 1e8]}
    _, told = described_kept(loose, known, "float64", SHEET) or ("", "")
    assert isinstance(told, str) and re.search(r"rate\.fill, rate\.memory,.* host \(not determined: left at what", told)
    assert "13.7" not in told and "9e+07" not in told
    _, sums = described_kept(INTERVALS, SHEET, "float64", SHEET) or ("", "")
    assert (
        isinstance(sums, str)
        and "rate.memory that of the sums" in sums
        and "rate.memory 0" not in sums
        and f"({DATASHEET})" in sums
    )


def test_a_model_without_intervals_tells_nothing_of_it() -> None:
    assert described_kept({}, SHEET, "float64", SHEET) is None


def test_show_has_the_line() -> None:
    section = tuned.section(
        calibration=calibration_fields(SHEET, "float64"), intervals=INTERVALS, conditions={"device": "NVIDIA H200"}
    )
    rows = dict(described_rows(section, "float64", "cuda-9.0-132sm-nvidia-h200"))
    assert f"({DATASHEET})" in rows["kept"] and "rate.flops" not in rows["kept"]


@pytest.mark.parametrize(
    ("name", "ends", "known"),
    [
        ("rate.rows", (0.1, 1e4), False),
        ("rate.memory", (1e6, 1e15), False),
        ("rate.rows", (13.0, 60.0), True),
        ("f16x3.rate.flops", (2.5e14, 2.8e14), True),
        ("residues(14) > bytes.rate.rows", (0.1, 1e4), False),
        ("overlap", (-0.1, 0.3), True),
        ("frayed", (0.1, 10.0), False),  # terms of earlier models
        ("rough", (0.6, 0.9), True),
    ],
)
def test_an_interval_is_judged_by_its_width(name: str, ends: tuple[float, float], known: bool) -> None:
    assert is_determined(name, *ends) == known
