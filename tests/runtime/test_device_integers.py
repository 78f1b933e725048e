"""Which plans integers on a device get, decided without one."""

from __future__ import annotations

import pytest

from fmm.arrays.library import ProductSetting, contiguous_operand
from fmm.dtypes import INTEGERS
from fmm.hardware.datasheets import datasheet_of
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.papers.huang_blocks import datasheet_chip
from fmm.runtime.devices import Device, gpu_from_description
from fmm.runtime.prepare import PreparedCall, ProblemQuery, prepare_query
from tests.support.chips import H200 as CHIP

PLENTY = Limits(1 << 36)


def hopper() -> Device:
    found = datasheet_of("h200")
    return gpu_from_description("NVIDIA H200", found.capability, found.sms, chip=CHIP)


def answered(
    dtype: str, side: int, limits: Limits = PLENTY, lacking: bool = False, on: Device | None = None
) -> PreparedCall:
    x = contiguous_operand((side, side), dtype)
    setting = ProductSetting(0, dtype, no_vendor_product=lacking)
    return prepare_query(ProblemQuery(x, x, None, setting, on or hopper(), limits))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_multiplied_by_residues(dtype: str) -> None:
    found = answered(dtype, 4096)
    assert str(found.plan) == "residues > bytes" and found.launches is not None
    assert found.workspace <= PLENTY.workspace and found.decision.error_growth == 1
    assert answered(dtype, 16).plan is None, "cupy.matmul's kernel is over sooner"


def test_what_the_library_lacks_is_computed_at_any_size() -> None:
    """torch raises an error."""
    for side in (1, 16):
        assert answered("int64", side).plan is None
        found = answered("int64", side, lacking=True)
        assert str(found.plan) == "residues > bytes" and "no product of this type" in found.decision.reason


def test_little_workspace_is_enough() -> None:
    """C block by block: of what torch lacks nothing would be left, and CuPy takes ten times as long."""
    for lacking in (False, True):
        for share in (2, 4, 8):
            limits = Limits(answered("int64", 8192).workspace // share)
            found = answered("int64", 8192, limits, lacking)
            assert str(found.plan).startswith("quarters > ") and found.launches is not None
            assert 0 < found.workspace <= limits.workspace


def test_limits_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    for lacking in (False, True):
        assert answered("int64", 4096, Limits(0), lacking).decision.plan == VENDOR
    monkeypatch.setenv("FMM_DISABLE", "1")
    assert answered("int64", 4096, lacking=True).decision.plan == VENDOR


def test_other_chips() -> None:
    """Before compute capability 8.0 no kernel multiplies bytes. Later chips use the kernels, which were not measured
    there, only if the library has no product of integers."""
    for name, plan in (("V100", VENDOR), ("A100", Plan.parse("residues > bytes"))):
        found = datasheet_of(name)
        device = gpu_from_description(f"NVIDIA {name}", found.capability, found.sms, chip=datasheet_chip(found))
        assert answered("int64", 4096, on=device).decision.plan == VENDOR
        assert answered("int64", 4096, lacking=True, on=device).decision.plan == plan
