"""How products are shared on paper: fmm.distributed.plan, which needs no torch and no device."""

from __future__ import annotations

import pytest

import fmm.distributed
from fmm.kernels.plans.plan import PlanError
from fmm.runtime.sharing import growth_of


def test_two_devices_are_nearly_twice_as_fast() -> None:
    found = fmm.distributed.plan(32768, 32768, 32768, mesh=2, dtype="float64")
    assert 1.6 < found.speedup < 2.1  # a half may be a little faster than half as long
    text = str(found)
    assert "product: 32768 x 32768 x 32768, float64, on a mesh of 2 (NVLink 4 among 8" in text
    assert "shared: " in text and "compared, predicted seconds:" in text and "received by a device: " in text


def test_a_level_above_is_one_that_is_asked_for() -> None:
    found = fmm.distributed.plan(16384, 16384, 16384, mesh=(2, 2), plan="winograd")
    assert {str(way.above) for way in found.considered} == {"winograd > vendor"}
    assert ", below winograd" in str(found)
    plain = fmm.distributed.plan(16384, 16384, 16384, mesh=(2, 2), plan="vendor")
    assert {str(way.above) for way in plain.considered} == {"vendor"}


def test_the_error_limit_holds_for_the_level_above_too() -> None:
    found = fmm.distributed.plan(16384, 16384, 16384, mesh=2, dtype="bfloat16", max_error_growth=1.0)
    assert growth_of(found.best, "bfloat16") == 1.0
    assert str(found.local) == "vendor"


def test_what_is_no_product_on_a_mesh() -> None:
    for bad in ({"mesh": 0}, {"mesh": (2, 2, 2)}, {"mesh": 2, "device": "abacus"}, {"mesh": 2, "links": ("a", "b")}):
        with pytest.raises(ValueError):
            fmm.distributed.plan(8, 8, 8, **bad)
    with pytest.raises(PlanError):
        fmm.distributed.plan(8, 8, 8, mesh=2, plan="3m")


def test_what_is_too_large_is_not_chosen() -> None:
    """Three matrices of 64 GiB on four devices of 141 GB: no device holds all of B beside its parts."""
    found = fmm.distributed.plan(131072, 131072, 131072, mesh=4, dtype="float32")
    assert found.best.memory <= 141e9 - 3 * 131072**2
    assert "(too large)" not in str(found).splitlines()[1]
