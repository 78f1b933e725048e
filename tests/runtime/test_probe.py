"""The probe: rates that make sense, measured once, asked only when a plan tempts, and able to say no."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

import fmm
from fmm.arrays.numpy_library import NUMPY
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.choose import Limits, choose
from fmm.perfmodel.default_calibration import BUILT_IN_SOURCE_TEXT, cpu_calibration
from fmm.problem import Problem
from fmm.runtime import devices, probe
from fmm.runtime.decisions import decide
from fmm.runtime.decisions.decide import plans_with_less_memory
from fmm.runtime.decisions.limits import PlanConstraints
from fmm.runtime.prepare import prepare_call

LARGE = Limits(1 << 50)
TEMPTING = Problem(20000, 20000, 20000)


@pytest.fixture
def fresh() -> Iterator[None]:
    """As in a process that has measured nothing."""
    kept = dict(probe._measured_calibrations)
    probe._measured_calibrations.clear()
    yield
    probe._measured_calibrations.clear()
    probe._measured_calibrations.update(kept)


def rates(flops: float, stream: float) -> Calibration:
    """A processor that multiplies and adds so fast."""
    both = MappingProxyType(dict.fromkeys(("float64", "float32"), ProductRate(flops, 0.0, probe.HALF_RATE_SIDE)))
    return Calibration("for tests", "for tests", both, stream)


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_side_by_side_short_leaves_are_left_alone(at_a_time: int, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast the sums are: two levels of 5000 x 7000 x 6000 end in products of 1250, of 8192 in 2048."""
    monkeypatch.setattr(probe, "threads_per_product", lambda threads: nullcontext((at_a_time, 1)))
    monkeypatch.setattr(probe, "_product_rate", lambda dtype, pipe: ProductRate(1e9, 0.0, 1.0))
    monkeypatch.setattr(probe, "_sum_rate", lambda threads: 1e15)
    found = probe.probed_calibration(2, "float64")
    depths = [choose(Problem(*size), found, LARGE).best.plan.depth for size in ((5000, 7000, 6000), (8192,) * 3)]
    assert depths == ([1, 2] if at_a_time > 1 else [3, 3])


def test_a_process_measures_once_for_each_precision(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def measure(threads: int, dtypes: tuple[str, ...]) -> Calibration:
        asked.append(dtypes)
        return rates(1e11, 1e10)

    monkeypatch.setattr(probe, "_measure_calibration", measure)
    first = probe.probed_calibration(2, "float64")
    both = probe.probed_calibration(2, "complex128")
    assert probe.probed_calibration(2, "float64") is first
    assert probe.probed_calibration(2, "complex128") is both
    probe.probed_calibration(2, "float32")
    assert asked == [("float64", "complex128"), ("float32", "complex64")]


def test_calls_that_were_prepared_before_a_measurement_are_prepared_again(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the workspace: the guess decided them."""
    monkeypatch.setattr(probe, "_measure_calibration", lambda threads, dtypes: rates(1e11, 1e10))
    x = np.ones((200, 200))
    for workspace in (None, 1 << 20):
        constraints = PlanConstraints(workspace=workspace)
        before = prepare_call(NUMPY, x, x, None, constraints)
        assert prepare_call(NUMPY, x, x, None, constraints) is before
        probe._measured_calibrations.clear()
        assert probe.measured_calibration(2, "float64") is None
        found = probe.probed_calibration(2, "float64")
        assert probe.measured_calibration(2, "float64") is found
        assert prepare_call(NUMPY, x, x, None, constraints) is not before


def test_nothing_is_measured_for_products_that_no_plan_can_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        devices, "probed_calibration", lambda threads, dtype: pytest.fail("it costs a twentieth of a second")
    )
    for size in ((8, 8, 8), (1000, 1000, 1000), (100, 20000, 20000)):
        assert fmm.plan(*size).plan == VENDOR


@pytest.mark.parametrize(("stream", "wins"), [(1e9, False), (1e11, True)])
def test_a_guess_is_checked_by_measurement(stream: float, wins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow sums: the vendor, whatever the built-in calibration proposes."""
    monkeypatch.setattr(devices, "probed_calibration", lambda threads, dtype: rates(1e12, stream))
    found = decide.decide_plan(TEMPTING, LARGE, devices.cpu_device(2))
    assert (found.plan != VENDOR) == wins
    assert "for tests" in found.reason
    leaner = list(plans_with_less_memory(TEMPTING, found.plan, LARGE, devices.cpu_device(2)))
    assert VENDOR not in leaner and (not leaner or wins)


def test_a_calibration_that_was_not_guessed_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuned device's, say."""
    monkeypatch.setattr(devices, "probed_calibration", lambda threads, dtype: pytest.fail("measured again"))
    monkeypatch.setattr(
        devices, "built_in_calibration", lambda threads: replace(cpu_calibration(threads), source="tuned")
    )
    assert decide.decide_plan(TEMPTING, LARGE, devices.cpu_device(2)).plan != VENDOR


def test_without_memory_to_measure_the_guess_stands(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(threads: int, dtypes: tuple[str, ...]) -> Calibration:
        raise MemoryError

    monkeypatch.setattr(probe, "_measure_calibration", fail)
    assert probe.probed_calibration(2, "float64").source == BUILT_IN_SOURCE_TEXT
    assert not probe._measured_calibrations, "it is tried again when there is memory"


def test_while_another_call_has_the_threads_the_guess_stands(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "paused_blas_threads", lambda: 2)
    monkeypatch.setattr(
        probe, "_measure_calibration", lambda threads, dtypes: pytest.fail("measured with one thread of two")
    )
    assert probe.probed_calibration(2, "float64").source == BUILT_IN_SOURCE_TEXT
    assert not probe._measured_calibrations, "it is tried again"


def test_three_real_products_must_promise_more(fresh: None) -> None:
    """They lose more at their beginning than the formula knows; the rates are those that were measured once."""
    real, both = (probe.probed_calibration(blas_threads(), dtype) for dtype in ("float64", "complex128"))
    assert (real.margin, both.margin) == (probe.MIN_PREDICTED_GAIN, probe.MIN_COMPLEX_GAIN)
    assert real.rates == both.rates and both.margin > real.margin
    assert probe.probed_calibration(blas_threads(), "complex128") is both
