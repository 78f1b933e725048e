"""The first large product of a type on an untuned GPU measures the portable kernels; the measurement decides."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.arrays.numpy_library import NUMPY
from fmm.config import files
from fmm.config.certification import config_entry_from_rounds
from fmm.config.schema import FIRST_PRODUCT
from fmm.hardware.datasheets import datasheet_of
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.papers.huang_blocks import datasheet_chip
from fmm.perfmodel.predict import quick_prediction
from fmm.problem import Problem
from fmm.runtime import devices, matmul
from fmm.runtime.decisions import online
from fmm.runtime.decisions.decide import Decision, decide_plan
from fmm.runtime.decisions.first_product import (
    MAX_MEASURED_SECONDS,
    MAX_PREDICTED_SECONDS,
    calibration_scaled_to_entry,
    calibration_without_portable_kernels,
)
from fmm.runtime.decisions.limits import NO_CONSTRAINTS
from fmm.runtime.devices import Device, gpu_from_description
from fmm.runtime.prepare import prepare_call

PLENTY = Limits(1 << 36, 16.0)
VERSIONS = {"driver": "13000", "cublas": "130100"}


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new config file, and no measurement of this process."""
    path = tmp_path / "config.json"
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.setenv("FMM_CONFIG", str(path))
    monkeypatch.setattr(online, "_trials", {})
    files.clear_config_cache()
    yield path
    files.clear_config_cache()


def gpu(name: str, versions: dict[str, str] | None = None) -> Device:
    found = datasheet_of(name)
    return gpu_from_description(
        f"NVIDIA {name}", found.capability, found.sms, versions or VERSIONS, datasheet_chip(found)
    )


def decided(name: str, dtype: str, side: int = 4096, versions: dict[str, str] | None = None) -> Decision:
    files.clear_config_cache()
    return decide_plan(Problem(side, side, side, dtype), PLENTY, gpu(name, versions))


def measure(trial: online.OnlineTrial, speedup: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the trial with a clock by which the plan is `speedup` times as fast as the vendor."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def multiply(plan: Plan) -> None:
        now[0] += 0.001 if plan == VENDOR else 0.001 / speedup

    trial.run_all_products(multiply, lambda: None, MAX_MEASURED_SECONDS)
    assert trial.entry is not None and trial.entry.origin == FIRST_PRODUCT


def is_portable(plan: Plan) -> bool:
    return plan.leaf_use.leaf.kernel_leaf_name in ("f16x3", "bytes")


CASES = [
    ("A100", "float32"),
    ("RTX 4090", "float64"),
    ("RTX 5090", "float64"),
    ("A100", "int64"),
    ("RTX 4090", "complex128"),
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_plan_that_wins_is_used_from_then_on(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = decided(name, dtype)
    trial = before.trial
    assert trial is not None and is_portable(trial.plan) and not is_portable(before.plan)
    seconds = [
        quick_prediction(p, trial.problem, datasheet_calibration(name)).predicted_seconds for p in (trial.plan, VENDOR)
    ]
    assert sum(seconds) * online.MEASURED_PAIRS <= MAX_PREDICTED_SECONDS
    measure(trial, 3.0, monkeypatch)
    for forget in (False, True):  # a new process reads the config
        if forget:
            monkeypatch.setattr(online, "_trials", {})
        after = decided(name, dtype)
        assert is_portable(after.plan) and after.trial is None
        assert not is_portable(decided(name, dtype, 512).plan)
    assert decided(name, dtype, versions={**VERSIONS, "cublas": "140000"}).trial is not None


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_plan_that_loses_is_never_used(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = decided(name, dtype).trial
    assert trial is not None
    measure(trial, 0.9, monkeypatch)
    for side in (1024, 4096, 16384):
        found = decided(name, dtype, side)
        assert not is_portable(found.plan) and found.trial is None


def test_a_small_gain_lowers_the_predicted_gain() -> None:
    unmeasured, problem = datasheet_calibration("A100"), Problem(4096, 4096, 4096, "float32")
    trial = decided("A100", "float32").trial
    assert trial is not None
    entry = config_entry_from_rounds(problem.size, str(trial.plan), [1.1] * 6, [1.0] * 6, 0.01, FIRST_PRODUCT)
    found = calibration_scaled_to_entry(unmeasured, entry, "float32")
    own, vendor = (quick_prediction(x, problem, found).predicted_seconds for x in (trial.plan, VENDOR))
    assert vendor / own == pytest.approx(1.1, rel=0.05)
    assert "residues(7) > bytes" in unmeasured.rates and "residues(7) > bytes" not in found.rates


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_limit_below_the_vendors_error_measures_the_usual_plan(dtype: str) -> None:
    """A slow, accurate plan would leave the whole type to the vendor."""
    problem = Problem(4096, 4096, 4096, dtype)
    usual, accurate = (decide_plan(problem, x, gpu("A100")) for x in (PLENTY, replace(PLENTY, error_growth=0.02)))
    assert usual.trial is not None and accurate.trial is not None
    assert accurate.trial.plan == usual.trial.plan


def test_products_that_measure_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("H200", "H800", "V100", "B200"):
        assert decided(name, "float32").trial is None, name
    assert decided("A100", "float32", 1024).trial is None
    for problem in (Problem(4096, 4096, 4096, "float32", beta=1), Problem(4096, 64, 4096, "float32", op="gram")):
        found = decide_plan(problem, PLENTY, gpu("A100"))
        assert found.trial is None and not is_portable(found.plan)
    assert (
        decide_plan(Problem(4096, 4096, 4096, "float32"), replace(PLENTY, emulation=False), gpu("A100")).trial is None
    )
    for name in ("H200", "V100"):
        assert calibration_without_portable_kernels(datasheet_calibration(name)) == datasheet_calibration(name)
    monkeypatch.setenv("FMM_TUNING_MODE", "off")
    assert decided("A100", "float32").trial is None and not is_portable(decided("A100", "float32").plan)
    assert decided("A100", "int64").plan == VENDOR


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_the_first_product_on_a_gpu(dtype: str, monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    """A Hopper GPU that is described as an A100 runs the portable kernels."""
    import cupy

    from fmm.runtime.run_device import cuda_device_chip  # type: ignore[attr-defined]

    chip = replace(cuda_device_chip(0), version=80, shared=0, tensor_maps=False)
    a100 = replace(gpu("A100"), chip=chip)
    monkeypatch.setattr(devices, "cuda_device", lambda index: a100)
    a, b = (cupy.asarray(np.random.default_rng(i).integers(-9, 9, (2500, 2500)).astype(dtype)) for i in range(2))
    out = cupy.empty_like(a)
    assert fmm.explain(a, b).trial is not None
    fmm.matmul(a, b, out=out)
    assert bool((out == a @ b).all()) and config.exists()
    entry = next(t.entry for t in vars(online)["_trials"].values() if t.origin == FIRST_PRODUCT)
    assert entry is not None and entry.rounds == online.MEASURED_PAIRS
    found = fmm.explain(a, b)
    assert found.trial is None and is_portable(found.plan) == (entry.plan != "vendor")
    print(dtype, entry.plan, entry.evidence_text)
    assert bool((fmm.matmul(a, b) == a @ b).all())


def trial_on_host() -> online.OnlineTrial:
    return online.trial_for_shape(
        Problem(64, 64, 64), gpu("A100").identity, Plan.parse("winograd > vendor"), FIRST_PRODUCT
    )


def test_the_runner_measures_blocks_and_decides_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host, with a trial whose plan wins: the product is right, and the trial runs once."""
    a, b = np.random.default_rng(0).standard_normal((2, 200, 200))
    trial = trial_on_host()

    def prepare_with_trial(library: Any, a: Any, b: Any, out: Any, constraints: Any, *rest: Any) -> Any:
        call = prepare_call(library, a, b, out, constraints, *rest)
        if constraints.plan is not None or trial.entry is not None:
            return call
        return replace(call, decision=replace(call.decision, trial=trial))

    monkeypatch.setattr(matmul, "prepare_call", prepare_with_trial)
    for _ in range(2):
        np.testing.assert_allclose(matmul.run_matmul(NUMPY, a, b, None, NO_CONSTRAINTS), a @ b)
        assert trial.entry is not None and trial.entry.size == (64, 64, 64)


def test_an_error_of_the_measurement_leaves_the_type_to_the_vendor(
    monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    a, trial = np.ones((200, 200)), trial_on_host()
    call = prepare_call(NUMPY, a, a, None, NO_CONSTRAINTS)
    call = replace(call, decision=replace(call.decision, trial=trial))

    def fail(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(trial, "run_product", fail)
    monkeypatch.setattr(matmul, "prepare_call", lambda *_: call)
    np.testing.assert_allclose(matmul.run_matmul(NUMPY, a, a, None, NO_CONSTRAINTS), a @ a)
    assert trial.entry is not None and trial.entry.plan == "vendor" and not config.exists()


def test_a_slow_measurement_ends_and_leaves_the_type_to_the_vendor(
    monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    trial, ran, now = trial_on_host(), list[Plan](), [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def multiply(plan: Plan) -> None:
        ran.append(plan)
        now[0] += 0.03

    trial.run_all_products(multiply, lambda: None, 0.05)
    assert trial.entry is not None and trial.entry.plan == "vendor" and not config.exists()
    assert len(ran) == online.UNTIMED_PRODUCTS + 1 + 2


def test_one_thread_measures(config: Path) -> None:
    """A call of the trial during its measurement, and a call afterwards, compute nothing."""
    trial, ran = trial_on_host(), list[Plan]()

    def multiply(plan: Plan) -> None:
        ran.append(plan)
        other = threading.Thread(target=trial.run_all_products, args=(multiply, lambda: None, 10.0))
        other.start()
        other.join()

    for _ in range(2):
        trial.run_all_products(multiply, lambda: None, 10.0)
    assert len(ran) == online.UNTIMED_PRODUCTS + 1 + 2 * (online.MEASURED_PAIRS + 1)
    assert trial.entry is not None and trial.entry.rounds == online.MEASURED_PAIRS
