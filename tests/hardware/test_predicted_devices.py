"""`fmm-tune predict --device NAME 8192 --dtype float64` answers for every device with a datasheet."""

from __future__ import annotations

import pytest

from fmm.hardware.datasheets import datasheet_names, datasheet_of
from fmm.tuner.cli import main


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("name", datasheet_names())
def test_every_device_predicts_float64(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    sheet, typed = datasheet_of(name), name.casefold().replace(" ", "-")
    status = main(["predict", "--device", typed, "8192", "--dtype", "float64"])
    out, error = capsys.readouterr()
    if sheet.fp64_tflops is None:
        assert status == 2 and f"{name} has no rate for float64" in error
    else:
        assert status == 0
        assert out.splitlines()[0].startswith(f"8192x8192x8192 float64 on {name} (")
        assert any(line.startswith("plan: ") for line in out.splitlines())
