"""fmm.distributed.plan: predicted sharings, without torch and without devices."""

from __future__ import annotations

import re
from typing import Any

import pytest

import fmm.distributed
from fmm.distributed.decide_sharing import ShardingQuery, decide_sharing, first_local_product_size, sharing_error_growth
from fmm.distributed.layout import M_AXIS, MeshLayout
from fmm.hardware.links import default_network
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.predict import quick_prediction
from fmm.problem import Problem
from fmm.runtime.decisions.calibration_in_force import calibration_in_force
from fmm.runtime.decisions.decide import decide_plan, peak_workspace
from fmm.runtime.decisions.limits import workspace_limit_for_free_bytes
from fmm.runtime.devices import gpu_from_description


def test_two_devices_are_nearly_twice_as_fast() -> None:
    found = fmm.distributed.plan(16384, 16384, 16384, mesh=2, dtype="float64")
    assert 1.5 < found.speedup < 2.1  # a half may be a little faster than half as long
    text = str(found)
    assert "product: 16384 x 16384 x 16384, float64, on a mesh of 2 (NVLink 4 among 8" in text
    assert "shared: " in text and "compared, predicted seconds:" in text and "received by a device: " in text


def test_predicting_a_mesh_of_64_lists_no_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list has a million transfers, and takes half a minute."""
    monkeypatch.setattr(MeshLayout, "_transfers_in_step", lambda self, step: pytest.fail("a list of transfers"))
    found = fmm.distributed.plan(4096, 4096, 4096, mesh=64)
    assert str(found.best) == "rows by 8, columns by 8, as a rectangle, 2 pieces of the columns"
    assert found.best.received == 4 * (448 * 4096 + 4032 * 512 + 448 * 512)  # of A, B and C


def test_a_level_above_is_one_that_is_asked_for() -> None:
    found = fmm.distributed.plan(8192, 8192, 8192, mesh=(2, 2), plan="winograd")
    assert {str(way.outer_plan) for way in found.candidates} == {"winograd > vendor"}
    assert ", below winograd" in str(found)
    plain = fmm.distributed.plan(8192, 8192, 8192, mesh=(2, 2), plan="vendor")
    assert {str(way.outer_plan) for way in plain.candidates} == {"vendor"}


def test_the_error_limit_holds_for_the_level_above_too() -> None:
    found = fmm.distributed.plan(16384, 16384, 16384, mesh=2, dtype="bfloat16", max_error_growth=1.0)
    assert sharing_error_growth(found.best, "bfloat16") == 1.0
    assert str(found.local) == "vendor"


@pytest.mark.parametrize("variable", ["FMM_DISABLE", "FMM_COMPONENTWISE"])
def test_variables_that_exclude_fast_algorithms_exclude_a_level_above(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = 32768, 32768, 32768
    assert len({way.outer_plan for way in fmm.distributed.plan(*sizes, mesh=2, dtype="float64").candidates}) > 1
    monkeypatch.setenv(variable, "1")
    found = fmm.distributed.plan(*sizes, mesh=2, dtype="float64")
    assert {way.outer_plan for way in found.candidates} == {VENDOR}
    if variable == "FMM_DISABLE":
        assert ", below winograd" in str(fmm.distributed.plan(*sizes, mesh=2, plan="winograd"))
        return
    with pytest.raises(PlanError, match=r"winograd > vendor .* FMM_COMPONENTWISE=1 requires"):
        fmm.distributed.plan(*sizes, mesh=2, plan="winograd")


def test_what_is_no_product_on_a_mesh() -> None:
    for bad in ({"mesh": 0}, {"mesh": (2, 2, 2)}, {"mesh": 2, "device": "abacus"}, {"mesh": 2, "links": ("a", "b")}):
        with pytest.raises(ValueError):
            fmm.distributed.plan(8, 8, 8, **bad)
    with pytest.raises(PlanError):
        fmm.distributed.plan(8, 8, 8, mesh=2, plan="3m")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"dtype": "foo"}, "unknown dtype 'foo'; valid: "),
        ({"max_error_growth": float("nan")}, "max_error_growth must be a number above 0, not nan"),
        ({"max_error_growth": 0}, "max_error_growth must be a number above 0, not 0"),
        ({"mesh": 1.5}, "a side of the mesh must be a whole number, 0 or more, not 1.5"),
        ({"mesh": (2, 1.5)}, "a side of the mesh must be a whole number, 0 or more, not 1.5"),
        ({"m": 10.5}, "m must be a whole number, 0 or more, not 10.5"),
        ({"device": None}, "unknown device None; the devices are "),
    ],
)
def test_an_invalid_argument_is_named(bad: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        fmm.distributed.plan(**{"m": 8, "k": 8, "n": 8, "mesh": 2} | bad)


def test_what_is_too_large_is_not_chosen() -> None:
    """Half of B has 128 MiB; received panels come on top."""
    layout = MeshLayout(8192, 8192, 8192, (2,), (0,), (0,), (M_AXIS,))
    gpu, network = gpu_from_description("NVIDIA H200", "9.0", 132), default_network("9.0", 2)
    free = decide_sharing(layout, "float32", gpu, network, ShardingQuery(outer_plan=VENDOR))
    tight = decide_sharing(layout, "float32", gpu, network, ShardingQuery(memory_limit=100 << 20, outer_plan=VENDOR))
    assert tight.best.memory <= 100 << 20 < free.best.memory
    assert "(too large)" not in str(free)


GPU, NETWORK = gpu_from_description("NVIDIA H200", "9.0", 132), default_network("9.0", 4)
LIMITS_OF_MEMORY = [1 << 34, 40 << 30, 115 << 30]


@pytest.mark.slow
@pytest.mark.parametrize("free", LIMITS_OF_MEMORY)
def test_the_part_is_predicted_by_the_plan_that_its_own_memory_allows(free: int) -> None:
    """float64, 65536, rows over four devices: 24 GiB of B arrive beside the parts before the products run."""
    layout = MeshLayout(65536, 65536, 65536, (4,), (0,), (0,), (M_AXIS,))
    found = decide_sharing(layout, "float64", GPU, NETWORK, ShardingQuery(0.8 * free, free_bytes=free))
    best, size = found.best, first_local_product_size(found.best)
    assert found.local_workspace == workspace_limit_for_free_bytes(int(free - best.held_bytes))
    limits = Limits(found.local_workspace, found.local_error_growth)
    assert found.local == decide_plan(Problem(*size, "float64"), limits, GPU).plan
    needed = peak_workspace(found.local, Problem(*size, "float64"))
    assert needed <= found.local_workspace and needed + best.held_bytes <= free
    calibration = calibration_in_force(Problem(*size, "float64"), limits, GPU)
    assert calibration is not None
    seconds = quick_prediction(found.local, Problem(*size, "float64"), calibration).predicted_seconds
    if best.layout.pieces == 1 and best.outer_plan == VENDOR:
        assert best.products == pytest.approx(seconds)


def test_less_memory_is_never_predicted_faster() -> None:
    layout = MeshLayout(65536, 65536, 65536, (4,), (0,), (0,), (M_AXIS,))
    seconds = [
        decide_sharing(
            layout, "float64", GPU, NETWORK, ShardingQuery(0.8 * free, outer_plan=VENDOR, free_bytes=free)
        ).best.products
        for free in LIMITS_OF_MEMORY
    ]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > seconds[-1]
