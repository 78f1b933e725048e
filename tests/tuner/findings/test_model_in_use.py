"""The model in use of a section: with the datasheet's rates of unmeasured leaves, and the model of real numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from fmm.config import files, schema
from fmm.config.files import SHIPPED_CONFIG
from fmm.config.identity import Identity
from fmm.config.schema import ConfigError
from fmm.kernels.leaves import F16X3_RATE
from fmm.perfmodel.choose import Limits, choose
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.problem import Problem
from fmm.runtime.decisions.decide import decide_plan
from fmm.runtime.devices import calibration_from_datasheet, gpu_from_description
from fmm.tuner.findings.device_summary import summarize_device
from fmm.tuner.findings.model_in_use import (
    decide_square,
    default_limits,
    device_name,
    fallback_model_text,
    model_in_use,
    unmeasured_leaves,
)
from fmm.tuner.findings.summary import SectionText
from tests.support import ROOT
from tests.support import configs as tuned

KEY, TYPES = next(iter(files.read_config(SHIPPED_CONFIG).items()))  # an H200


def without_three_products() -> dict[str, Any]:
    """The float32 section of a tuning that is older than the leaf f16x3."""
    known = schema.read_calibration(TYPES["float32"]["calibration"], "", "float32", "", "")
    older = replace(known, rates=MappingProxyType({x: r for x, r in known.rates.items() if x == "float32"}))
    return {**TYPES["float32"], "calibration": schema.calibration_fields(older, "float32")}


def test_a_gpu_is_known_by_its_key_and_name() -> None:
    found = calibration_from_datasheet("cuda-9.0-132sm-nvidia-h200", "NVIDIA H200")
    assert found is not None and found.name == "H200"
    assert calibration_from_datasheet("cuda-9.0-132sm", "NVIDIA H200") == found  # an older key
    assert calibration_from_datasheet("cuda-9.0-114sm-nvidia-h200", "NVIDIA H200") is None  # a part of one
    assert calibration_from_datasheet("cpu-a-2t", "NVIDIA H200") is None
    assert device_name(KEY, TYPES["float32"]) == "NVIDIA H200" and device_name("cpu-a", {"conditions": None}) == "cpu-a"


@pytest.mark.parametrize("dtype", TYPES)
def test_it_is_the_one_by_which_products_are_decided(
    dtype: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FMM_CONFIG", str(SHIPPED_CONFIG))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.delenv("FMM_DISABLE", raising=False)
    files.clear_config_cache()
    used, limits = model_in_use(KEY, dtype, TYPES).calibration, Limits(1 << 34, 16.0)
    assert used is not None
    for side in (1500, 4096, 8192):
        problem = Problem(side, side, side, dtype)
        plan = decide_plan(problem, limits, gpu_from_description("NVIDIA H200", "9.0", 132)).plan
        assert plan == choose(problem, used, limits).best.plan
    files.clear_config_cache()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_answers_for_squares_are_the_decisions(dtype: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tuning that has entries: at their sides by them, at others by the model. In float32 by the model at all: the
    tuning is older than the leaf f16x3, by which that takes a third of the entry's time."""
    path = ROOT / "results" / "nvidia-h200" / "config.json"
    ((key, types),) = files.read_config(path).items()
    monkeypatch.setenv("FMM_CONFIG", str(path))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.delenv("FMM_DISABLE", raising=False)
    files.clear_config_cache()
    used, found = model_in_use(key, dtype, types), {}
    for side in (2000, 16000, 16384, 40960, 57344, 64000):
        problem = Problem(side, side, side, dtype)
        limits, answer = default_limits(used, problem), decide_square(used, side)
        assert limits is not None and answer is not None
        decided = decide_plan(problem, limits, gpu_from_description("NVIDIA H200", "9.0", 132))
        assert (answer.plan, answer.entry is not None) == (decided.plan, "entry" in decided.source), side
        assert answer.workspace == decided.workspace and answer.error_growth == decided.error_growth
        found[side] = answer.speedup_basis
    files.clear_config_cache()
    assert found[16384] == ("predicted" if dtype == "float32" else "measured")
    assert found[16000] == found[64000] == "predicted"


def test_a_leaf_that_a_tuning_skipped_has_the_datasheets_rate() -> None:
    """Since the tuning is older than the leaf, or was stopped early: it is treated as those that no tuning measures."""
    section, sheet = without_three_products(), datasheet_calibration("H200")
    used = model_in_use(KEY, "float32", {"float32": section})
    assert used.left_out == ("f16x3",) and used.failed == () and used.calibration is not None
    beside = used.calibration.rates["float32"].flops / sheet.rates["float32"].flops
    for name in (F16X3_RATE, "residues(8) > bytes"):
        assert used.calibration.rates[name].flops == pytest.approx(beside * sheet.rates[name].flops)
    rows = SectionText(section, "float32", KEY).unmeasured_leaves_table().value_by_label
    assert rows["f16x3"] == "datasheet; this tuning skipped the leaf"
    summary = summarize_device(KEY, {"float32": section}, Path("c.json"), in_force=True)
    assert summary.failure_line == "to do   float32: f16x3 not measured: fmm-tune --dtype float32"
    here = summarize_device(KEY, {"float32": section}, Path("c.json"), in_force=True, option_values={"1"})
    assert here.failure_line == "to do   float32: f16x3 not measured: fmm-tune --device 1 --dtype float32"
    assert model_in_use(KEY, "float32", TYPES).left_out == ()


def test_a_leaf_that_failed_is_excluded() -> None:
    section = {**without_three_products(), "failed": [F16X3_RATE]}
    used = model_in_use(KEY, "float32", {"float32": section})
    assert used.failed == ("f16x3",) and used.left_out == ()
    assert used.calibration is not None and F16X3_RATE not in used.calibration.rates
    assert (
        SectionText(section, "float32", KEY).unmeasured_leaves_table().value_by_label["f16x3"]
        == "none; the leaf failed and is excluded"
    )


def test_a_leaf_that_no_tuning_measures_is_listed_if_it_is_chosen() -> None:
    """If a plan by it is chosen: float64's by residues are, float32's are not."""
    assert "residues(8) > bytes" in model_in_use(KEY, "float32", {"float32": without_three_products()}).assumed
    assert model_in_use(KEY, "bfloat16", TYPES).assumed == ()
    rows = SectionText(without_three_products(), "float32", KEY).unmeasured_leaves_table().value_by_label
    assert not any("residues" in leaf for leaf in rows)
    used = model_in_use(KEY, "float64", TYPES)
    chosen = unmeasured_leaves(used)
    assert set(chosen) <= {*used.assumed, *used.left_out}
    rows = SectionText(TYPES["float64"], "float64", KEY).unmeasured_leaves_table().value_by_label
    assert all((leaf in rows) == (leaf in chosen) for leaf in used.assumed)


def test_a_complex_type_has_the_rates_of_its_real_type() -> None:
    section = tuned.section()
    both = model_in_use("cpu-a", "complex128", {"complex128": section, "float64": section}).calibration
    alone = model_in_use("cpu-a", "complex128", {"complex128": section}).calibration
    assert both is not None and alone is not None
    assert set(both.rates) == {"complex128", "float64"} and set(alone.rates) == {"complex128"}
    damaged = model_in_use("cpu-a", "complex128", {"complex128": section, "float64": {}})
    assert damaged.calibration == alone
    with pytest.raises(ConfigError):
        model_in_use("cpu-a", "float64", {"float64": {}})


def test_the_fallback_of_a_rejected_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FMM_CONFIG", raising=False)
    assert fallback_model_text(Identity("cpu-a", "a"), "float64") == "a short probe in each process"
    card = Identity(KEY, "NVIDIA H200")
    assert fallback_model_text(card, "float32") == "the shipped model of this card"
    assert fallback_model_text(card, "complex64") == "the datasheet"
    monkeypatch.setenv("FMM_CONFIG", "mine.json")  # then no other config is read
    assert fallback_model_text(card, "float32") == "the datasheet"
    assert fallback_model_text(Identity("cuda-9.0-1sm", "a card"), "float32") == "the vendor"
