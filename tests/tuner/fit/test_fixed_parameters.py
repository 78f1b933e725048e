"""A parameter that a tuning does not determine is listed with its value, its unit and the source of the value."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from fmm.config.schema import calibration_fields
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.default_calibration import cpu_calibration, datasheet_calibration
from fmm.tuner.findings.summary import SectionText
from fmm.tuner.fit.parameters import (
    FIT_PARAMETERS,
    LEAF_RATE_PARAMETERS,
    PARAMETER_MEANINGS,
    TILE_SIDE_PARAMETER,
    fixed_parameters,
    is_parameter_determined,
    parameter_unit,
    text_with_unit_prefix,
    with_parameters,
)
from tests.support import configs as tuned

SHEET = datasheet_calibration("H200")
INTERVALS: dict[str, Any] = {"rate.flops": [1e13, 2e13], "stream": [1e12, 2e12]}
DATASHEET = "datasheet of the H200"


def sources(fitted: Calibration, dtype: str, guess: Calibration | None = SHEET) -> dict[str, str]:
    return {x.name: x.source for x in fixed_parameters(INTERVALS, fitted, dtype, guess)}


def with_rate(fitted: Calibration, dtype: str, **fields: float) -> Calibration:
    rates = {**fitted.rates, dtype: replace(fitted.require_rate(dtype), **fields)}
    return replace(fitted, rates=MappingProxyType(rates))


def test_a_value_is_the_datasheets_or_neutral_or_not_determined() -> None:
    known = with_rate(replace(SHEET, host=3e-6), "float64", pipe=0.0, memory=1e13, tiled=0.0)
    found = sources(known, "float64")
    assert found["rate.fill"] == found["small"] == DATASHEET
    assert found["rate.pipe"] == found["rate.rows"] == "neutral"
    assert found["rate.memory"] == found["host"] == "not determined"
    assert not {"rate.flops", "stream", "rate.tiled", "rate.tiled_odd", "rate.waves", "idle", "parts"} & set(found)
    assert "rate.tiled_odd" in sources(with_rate(known, "float64", tiled=1.0), "float64")


def test_a_cpus_values_are_built_in() -> None:
    found = sources(cpu_calibration(2), "float64", None)
    assert found["rate.fill"] == found["small"] == "built in" and found["sequential"] == "neutral"
    assert not {"idle", "host", "parts"} & set(found)
    assert sources(cpu_calibration(2), "complex128", None)["parts"] == "built in"


def test_a_leaf_prepares_its_operands_in_the_same_time_at_any_rate() -> None:
    """The bandwidth decides how long preparing takes, not the rate of products, so no fit varies rows and cols."""
    assert [p.name for p in LEAF_RATE_PARAMETERS] == ["rate.flops", "rate.fill", "rate.pipe"]
    before = SHEET.rates["f16x3"]
    after = with_parameters(SHEET, "f16x3", {"rate.flops": 2 * before.flops}).rates["f16x3"]
    assert (after.rows, after.cols) == pytest.approx((2 * before.rows, 2 * before.cols))
    given = with_parameters(SHEET, "f16x3", {"rate.flops": 2 * before.flops, "rate.rows": 3.0}).rates["f16x3"]
    assert (given.rows, given.cols) == pytest.approx((3.0, 2 * before.cols))
    vendor = with_parameters(with_rate(SHEET, "float32", rows=5.0), "float32", {"rate.flops": 1.0}).rates["float32"]
    assert vendor.rows == 5.0


def test_a_model_without_intervals_has_no_fixed_parameters() -> None:
    assert not list(fixed_parameters({}, SHEET, "float64", SHEET))


def test_the_table_has_no_value_that_no_source_gave() -> None:
    """The start of a fit says nothing of the device, nor does a fitted value with a wide interval."""
    known = with_rate(replace(SHEET, host=3e-6), "float64", memory=1.37e13, fill=9e7, pipe=0.0)
    section = tuned.section(
        calibration=calibration_fields(known, "float64"),
        intervals={**INTERVALS, "rate.fill": [1.0, 1e8]},
        conditions={"device": "NVIDIA H200"},
    )
    (table,) = (
        t for t in SectionText(section, "float64", "cuda-9.0-132sm-nvidia-h200").section_tables if "fixed" in t.title
    )
    rows = {name: cells for name, *cells in table.rows}
    assert rows["rate.fill"] == rows["rate.memory"] == ["", "", "not determined"]
    assert rows["rate.pipe"] == ["0", "steps of k", "neutral"] and rows["small"] == ["14.4", "Mbytes", DATASHEET]
    assert "rate.flops" not in rows


def test_every_parameter_has_a_meaning() -> None:
    assert set(PARAMETER_MEANINGS) == {p.name for p in (*FIT_PARAMETERS, TILE_SIDE_PARAMETER)}
    assert parameter_unit("frayed") == ""


def test_values_have_the_prefix_that_suits_them() -> None:
    assert text_with_unit_prefix("bytes/s", 1.736e10) == (["17.4"], "Gbytes/s")
    assert text_with_unit_prefix("s", 0.0037, 0.0207) == (["3.7", "20.7"], "ms")
    assert text_with_unit_prefix("s", 3e-9) == (["0.003"], "µs") and text_with_unit_prefix("bytes", 0.0) == (
        ["0"],
        "bytes",
    )
    assert text_with_unit_prefix("rows of C", 76.04) == (["76"], "rows of C") and text_with_unit_prefix("", 0.622) == (
        ["0.622"],
        "",
    )


@pytest.mark.parametrize(
    ("name", "ends", "known"),
    [
        ("rate.rows", (0.1, 1e4), False),
        ("rate.memory", (1e6, 1e15), False),
        ("rate.rows", (13.0, 60.0), True),
        ("f16x3.rate.flops", (2.5e14, 2.8e14), True),
        ("residues(14) > bytes.rate.rows", (0.1, 1e4), False),
        ("overlap", (-0.1, 0.3), True),
        ("frayed", (0.1, 10.0), False),  # not in this model
        ("rough", (0.6, 0.9), True),
    ],
)
def test_an_interval_is_judged_by_its_width(name: str, ends: tuple[float, float], known: bool) -> None:
    assert is_parameter_determined(name, *ends) == known
