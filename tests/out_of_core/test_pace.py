"""Launches run at most a second ahead, so that Ctrl-C waits a short time, if the model predicts no loss."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from fmm.arrays.numpy_library import NUMPY
from fmm.kernels.plans.plan import Plan
from fmm.out_of_core import product as out_of_core
from fmm.out_of_core import run_schedule as pacing
from fmm.out_of_core.run_schedule import (
    ASSUMED_PRODUCT_SECONDS,
    MAX_LAUNCH_SECONDS_AHEAD,
    LaunchBand,
    ScheduleRun,
    limited_launch_band,
    whole_launch_band,
)
from fmm.out_of_core.schedule import ProductCut, build_schedule
from fmm.out_of_core.transfers import CopyThreads
from fmm.problem import Shape
from fmm.runtime.decisions.limits import NO_CONSTRAINTS
from tests.support.host_engine import HostEngine, HostEvent, HostMachine


class CountingEngine(HostEngine):
    """Records the rows of each product, and the number of launched products that have not ended."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[HostEvent] = []
        self.rows: list[int] = []
        self.ahead: list[int] = []

    def multiply_matrices(self, a: Any, b: Any, c: Any, adds: bool, workspace: int) -> HostEvent:
        self.ahead.append(sum(not event.over for event in self.events))
        self.rows.append(len(a))
        self.events.append(super().multiply_matrices(a, b, c, adds, workspace))
        return self.events[-1]


@pytest.mark.parametrize(("seconds", "most"), [(0.3, 3), (0.4, 2), (0.6, 1), (5.0, 1)])
def test_a_second_of_products_is_launched_behind_the_one_that_runs(seconds: float, most: int) -> None:
    """The memory holds all tiles, so that no load waits for a product."""
    schedule = build_schedule((100, 200, 150), 8, ProductCut(100, 150, (50,), (100,), (4, 4, 1)))
    engine, done = CountingEngine(), list[int]()
    paces = {step.product_size: LaunchBand(16, seconds) for step in schedule.multiply_steps}
    a, b, c = np.random.default_rng(1).standard_normal((100, 200)), np.ones((200, 150)), np.zeros((100, 150))
    run = ScheduleRun(schedule, engine, CopyThreads(engine, threads=2), c.dtype, 0, 0, paces)
    run.multiply_matrices(a, b, c, done.append)
    np.testing.assert_allclose(c, a @ b, atol=1e-10)
    assert max(engine.rows) == 16 and len(engine.rows) == 4 * 7
    assert max(engine.ahead) <= most
    assert sum(done) == 100 * 200 * 150


def work_at(rate: float, start: float = 0.0) -> Any:
    return lambda size: start + prod(size) / rate


@pytest.mark.parametrize(
    ("size", "seconds", "rows"),
    [
        ((8192, 1000, 1000), work_at(1e9), 512),  # eight seconds: in parts of half a second
        ((8192, 1000, 1000), work_at(1e10), 8192),  # less than one
        ((8192, 1000, 1000), work_at(1e9, 0.5), 8192),  # each part would take half a second more
        ((300, 10**5, 10**5), work_at(1e9), 300),  # few rows stay together
        ((7000, 1000, 1000), work_at(1e9), 896),  # whole steps, of which the last one is shorter
    ],
)
def test_long_products_are_launched_in_parts_where_that_costs_no_time(size: Shape, seconds: Any, rows: int) -> None:
    found = limited_launch_band(size, seconds)
    assert found == (rows, seconds((rows, *size[1:])))
    assert whole_launch_band(size, seconds) == (size[0], seconds(size))


def test_of_an_unknown_device_a_few_are_launched_ahead() -> None:
    assert (
        limited_launch_band((100, 100, 100), lambda size: 0.0) == (100, ASSUMED_PRODUCT_SECONDS)
        and 0 < ASSUMED_PRODUCT_SECONDS < MAX_LAUNCH_SECONDS_AHEAD
    )


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_core, "ALWAYS_FREE_BYTES", 0)
    monkeypatch.setattr(pacing, "MAX_LAUNCH_SECONDS_AHEAD", 1e-9)
    monkeypatch.setattr(pacing, "MAX_BAND_SLOWDOWN", 1e9)
    monkeypatch.setattr(pacing, "MIN_BAND_ROWS", 64)
    out_of_core._cached_streamed_product.cache_clear()


def test_what_is_launched_in_parts_is_told_and_right(small_parts: None) -> None:
    a, b = np.random.default_rng(2).standard_normal((2, 256, 256))
    machine = HostMachine(10**9, CountingEngine())
    said = str(out_of_core.explain_streamed_matmul(NUMPY, a, b, None, machine, NO_CONSTRAINTS))
    found = out_of_core.streamed_matmul(NUMPY, a, b, None, machine, NO_CONSTRAINTS)
    out_of_core._cached_streamed_product.cache_clear()
    np.testing.assert_allclose(found, a @ b, atol=1e-9)
    assert "launched in parts of 64 rows" in said and set(machine.made.rows) == {64}  # type: ignore[attr-defined]


def test_a_plan_that_is_given_multiplies_whole_tiles(small_parts: None) -> None:
    """A required plan may be invalid for fewer rows, so its products are launched whole."""
    a, machine = np.ones((256, 256)), HostMachine(10**9, CountingEngine())
    constraints = NO_CONSTRAINTS._replace(plan=Plan.parse("strassen > vendor"))
    out_of_core.streamed_matmul(NUMPY, a, a, None, machine, constraints)
    out_of_core._cached_streamed_product.cache_clear()
    assert "launched in parts" not in str(out_of_core.explain_streamed_matmul(NUMPY, a, a, None, machine, constraints))
    assert max(machine.made.rows) > 64  # type: ignore[attr-defined]
