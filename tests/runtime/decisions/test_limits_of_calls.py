"""Limits that decisions keep: componentwise errors of triangles and workspace with factors; entries after an update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.config import files, store
from fmm.config.identity import PROCESSOR_MODEL, Identity
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime import matmul, prepare
from fmm.runtime.decisions import decide, online
from fmm.runtime.decisions.limits import limits_without_arrays
from fmm.runtime.decisions.online import OnlineTrial
from fmm.runtime.devices import gpu_from_description
from tests.support import configs as tuned


@pytest.mark.parametrize(("op", "emulates"), [("product", True), ("gram", False)])
def test_triangles_have_no_emulation_where_each_entrys_error_is_bounded(
    op: Any, emulates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FMM_COMPONENTWISE", "1")
    limits = limits_without_arrays(op, "float32", 1 << 30, 16.0)
    assert limits.componentwise and limits.emulation == emulates
    assert not limits_without_arrays(op, "int64", 1 << 30, 16.0).componentwise


def test_a_plan_with_factors_keeps_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fmm.config.identity import cpu_identity
    from fmm.kernels.cpu.thread_pool import blas_threads

    here = cpu_identity(blas_threads())
    section = tuned.section(versions=dict(here.versions))
    monkeypatch.setenv("FMM_CONFIG", str(tuned.write(tmp_path / "config.json", here.key, found=section)))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    files.clear_config_cache()
    rng = np.random.default_rng(1)
    a, b, c = rng.standard_normal((3, 512, 512))
    plain = fmm.explain(a, b)
    assert plain.plan != VENDOR and plain.workspace
    limit = plain.workspace
    found = fmm.explain_gemm(a, b, c, beta=0.5, workspace=limit)
    assert found.workspace <= limit
    np.testing.assert_allclose(fmm.gemm(a, b, c, beta=0.5, workspace=limit), a @ b + 0.5 * c)


@pytest.mark.parametrize(("error_growth", "is_measured"), [(16.0, True), (0.99, False), (0.1, False)])
def test_online_measures_nothing_where_the_vendor_is_forbidden(
    error_growth: float, is_measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FMM_TUNING_MODE", "online")
    monkeypatch.setenv("FMM_CONFIG", str(files.SHIPPED_CONFIG))
    monkeypatch.setattr(online, "_trials", {})
    files.clear_config_cache()
    device = gpu_from_description("NVIDIA H200", "9.0", 132)
    found = decide.decide_plan(Problem(30000, 30000, 30000, "float64"), Limits(1 << 40, error_growth), device)
    assert found.plan != VENDOR and (found.trial is not None) == is_measured == bool(vars(online)["_trials"])


def test_a_second_preparation_may_decline(monkeypatch: pytest.MonkeyPatch) -> None:
    """`out` overlaps an operand: the call is prepared again without `out`, and then less memory is free."""
    x = np.random.default_rng(2).standard_normal((200, 200))
    expected, original = x @ x, prepare.prepare_call

    def prepared(library: Any, a: Any, b: Any, out: Any, constraints: Any) -> Any:
        if out is None:
            constraints = constraints._replace(plan=VENDOR)
        return original(library, a, b, out, constraints)

    monkeypatch.setattr(matmul, "prepare_call", prepared)
    assert fmm.matmul(x, x, out=x, plan="winograd > vendor") is x
    np.testing.assert_allclose(x, expected)


def test_an_entry_after_an_update_counts(tmp_path: Path) -> None:
    path = tuned.write(tmp_path / "config.json", "cpu-test", found=tuned.section(tuned.entry()))
    new = tuned.entry((128, 128, 128))
    store.add_entry(path, Identity("cpu-test", "test", {**tuned.VERSIONS, "numpy": "2"}), "float64", new)
    section = files.read_config(path)["cpu-test"]["float64"]
    assert section["versions"]["numpy"] == "2" and section["calibration"]
    assert [(x["size"], x["verified"]) for x in section["entries"]] == [([96] * 3, False), ([128] * 3, True)]


def test_an_entry_on_another_processor_leaves_the_versions(tmp_path: Path) -> None:
    versions = {**tuned.VERSIONS, PROCESSOR_MODEL: "25.17"}
    path = tuned.write(tmp_path / "config.json", "cpu-test", found=tuned.section(versions=versions))
    store.add_entry(path, Identity("cpu-test", "test", {**versions, PROCESSOR_MODEL: "25.1"}), "float64", tuned.entry())
    assert files.read_config(path)["cpu-test"]["float64"]["versions"] == versions


def test_decisions_are_made_anew_after_a_registration() -> None:
    from fmm.kernels.registry import clear_caches

    decide.decide_by_model(Problem(64, 64, 64, "float64"), *_limits_and_device())
    caches = decide.decide_by_model, decide.find_certified_entry, decide.decide_for_unmeasured_leaf
    assert decide.decide_by_model.cache_info().currsize
    clear_caches()
    assert not any(x.cache_info().currsize for x in caches)


def _limits_and_device() -> Any:
    limits = limits_without_arrays("product", "float64", 1 << 30, 16.0)
    return limits, None, False, Identity("cpu-test", "test")


def test_a_trial_that_ends_while_a_thread_waits_is_not_ended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[Any] = []
    monkeypatch.setattr(OnlineTrial, "_save_entry", lambda self, entry: ends.append(entry))
    trial = OnlineTrial(Problem(8, 8, 8, "float64"), Identity("cpu-test", "test"), Plan.parse("winograd > vendor"))
    acquire = trial._lock.acquire

    class Lock:
        """Another thread ends the trial after this thread has seen that it runs."""

        def acquire(self, blocking: bool) -> bool:
            trial.end_trial_for_vendor()
            return acquire(blocking)

        release = trial._lock.release

    trial._lock = Lock()  # type: ignore[assignment]
    assert trial.run_product(lambda plan: plan) == VENDOR and not ends
