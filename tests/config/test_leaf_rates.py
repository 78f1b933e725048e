"""Rates of leaves in a config: its own, or those that follow from a datasheet; under the names that they have today."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType

import pytest

from fmm.config.files import SHIPPED_CONFIG
from fmm.config.reader import ConfigError
from fmm.config.schema import calibration_fields, read_calibration
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.default_calibration import datasheet_calibration, datasheet_rates

SHEET = "H200"
OF_TYPE = {"float64": 12, "float32": 7, "bfloat16": 0}  # how many rates of their own there are


def of_type(dtype: str) -> Calibration:
    """The datasheet's, as a section for one type has it."""
    found = datasheet_calibration(SHEET)
    rates = {dtype: found.rates[dtype], **datasheet_rates(SHEET, dtype)}
    return replace(found, rates=MappingProxyType(rates))


def read(fields: object, dtype: str) -> Calibration:
    return read_calibration(json.loads(json.dumps(fields)), "here", dtype, "GPU", "a config")


@pytest.mark.parametrize(("dtype", "count"), OF_TYPE.items())
def test_what_follows_from_a_datasheet_is_not_written_and_read_again(dtype: str, count: int) -> None:
    known = of_type(dtype)
    fields = calibration_fields(known, dtype, SHEET)
    assert "leaf_rates" not in fields and ("datasheet" in fields) == bool(count)
    assert len(known.rates) == 1 + count and read(fields, dtype).rates == known.rates


def test_what_was_measured_is_written_beside_it() -> None:
    known, name = of_type("float64"), "residues(14) > bytes"
    measured = replace(known.rates[name], flops=1e14)
    known = replace(known, rates=MappingProxyType({**known.rates, name: measured}))
    fields = calibration_fields(known, "float64", SHEET)
    assert list(fields["leaf_rates"]) == [name]
    assert read(fields, "float64").rates == known.rates


def test_a_section_without_a_datasheet_has_what_it_says_alone() -> None:
    """Of a tuning, which leaves out what nobody measured."""
    known = of_type("float32")
    assert set(calibration_fields(known, "float32")["leaf_rates"]) == set(known.rates) - {"float32"}
    fields = calibration_fields(replace(known, rates=MappingProxyType({"float32": known.rates["float32"]})), "float32")
    assert list(read(fields, "float32").rates) == ["float32"]


def test_a_datasheet_that_there_is_not() -> None:
    fields = calibration_fields(of_type("float64"), "float64", SHEET)
    with pytest.raises(ConfigError, match=r"here\.datasheet: unknown device 'H2000'"):
        read({**fields, "datasheet": "H2000"}, "float64")


def test_what_ships_repeats_no_formula() -> None:
    """Rates of leaves that no tuning measured are those of the datasheet, said once."""
    for devices in json.loads(SHIPPED_CONFIG.read_text(encoding="utf-8"))["devices"].values():
        for dtype, section in devices.items():
            fields = section["calibration"]
            found = read(fields, dtype).rates
            for name, rate in datasheet_rates(fields.get("datasheet", SHEET), dtype).items():
                assert (found[name] == rate) == (name not in fields.get("leaf_rates", {}))
