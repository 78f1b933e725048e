"""Which model a section stands for: with what its tuning did not measure, and with what is known of real numbers."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from fmm.config import files, schema
from fmm.config.identity import Identity
from fmm.config.locate import SHIPPED
from fmm.config.schema import ConfigError
from fmm.kernels.leaves import F16X3_RATE
from fmm.perfmodel.choose import Limits, choose
from fmm.perfmodel.untuned.datasheet import datasheet
from fmm.problem import Problem
from fmm.runtime.decisions.decide import decide
from fmm.runtime.devices import described_gpu
from fmm.tuner.findings.described import described, described_rows, instead
from fmm.tuner.findings.model_in_use import device_name, guess_of, model_in_use
from fmm.tuner.findings.summary import TypeInShort, in_short, next_steps
from tests.support import configs as tuned

((KEY, TYPES),) = files.read_config(SHIPPED).items()


def without_three_products() -> dict[str, Any]:
    """The float32 section of a tuning that is older than the leaf f16x3."""
    known = schema.checked_calibration(TYPES["float32"]["calibration"], "", "float32", "", "")
    older = replace(known, rates=MappingProxyType({x: r for x, r in known.rates.items() if x == "float32"}))
    return {**TYPES["float32"], "calibration": schema.calibration_fields(older, "float32")}


def test_a_gpu_is_known_by_its_key_and_name() -> None:
    found = guess_of("cuda-9.0-132sm", "NVIDIA H200")
    assert found is not None and found.name == "H200"
    assert guess_of("cuda-9.0-114sm", "NVIDIA H200") is None  # a part of one
    assert guess_of("cpu-a-2t", "NVIDIA H200") is None
    assert device_name(KEY, TYPES["float32"]) == "NVIDIA H200" and device_name("cpu-a", {"conditions": None}) == "cpu-a"


@pytest.mark.parametrize("dtype", TYPES)
def test_it_is_the_one_by_which_products_are_decided(
    dtype: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FMM_CONFIG", str(SHIPPED))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.delenv("FMM_DISABLE", raising=False)
    files.forget_configs()
    used, limits = model_in_use(KEY, dtype, TYPES).calibration, Limits(1 << 34, 16.0)
    assert used is not None
    for side in (1500, 4096, 8192):
        problem = Problem(side, side, side, dtype)
        plan = decide(problem, limits, described_gpu("NVIDIA H200", "9.0", 132)).plan
        assert plan == choose(problem, used, limits).best.plan
    files.forget_configs()


def test_a_leaf_that_a_tuning_did_not_measure_goes_by_the_datasheet_and_is_named() -> None:
    """Since the tuning is older than the leaf, or was stopped early: it is treated as those that no tuning measures."""
    section, sheet = without_three_products(), datasheet("H200")
    used = model_in_use(KEY, "float32", {"float32": section})
    assert used.left_out == ("f16x3",) and used.failed == () and used.calibration is not None
    beside = used.calibration.rates["float32"].flops / sheet.rates["float32"].flops
    for name in (F16X3_RATE, "residues(8) > bytes"):
        assert used.calibration.rates[name].flops == pytest.approx(beside * sheet.rates[name].flops)
    told = "\n".join(described(section, "float32", KEY))
    assert "plans that end in f16x3 go by the datasheet: this tuning did not measure them" in told
    assert "before fmm had" not in told and "f16x3" in told.partition("plans")[2].partition("besides")[0]
    short, again = TypeInShort("float32", used), "`fmm-tune --device 0 --dtype float32`, to measure what goes by"
    assert again in "\n".join(next_steps(KEY, [short], True, "x"))
    assert model_in_use(KEY, "float32", TYPES).left_out == ()


def test_a_leaf_that_failed_is_not_taken_and_that_is_said() -> None:
    section = {**without_three_products(), "failed": [F16X3_RATE]}
    used = model_in_use(KEY, "float32", {"float32": section})
    assert used.failed == ("f16x3",) and used.left_out == ()
    assert used.calibration is not None and F16X3_RATE not in used.calibration.rates
    told = "\n".join(described(section, "float32", KEY))
    assert "plans that end in f16x3 are not taken: they failed when they were measured" in told


def test_what_no_tuning_measures_goes_by_the_datasheet_and_is_named() -> None:
    assert "residues(8) > bytes" in model_in_use(KEY, "float32", {"float32": without_three_products()}).assumed
    assert model_in_use(KEY, "bfloat16", TYPES).assumed == ()
    assert "besides    plans that end in residues(8) > bytes" in "\n".join(
        described(without_three_products(), "float32", KEY)
    )


def test_complex_numbers_know_what_real_ones_do() -> None:
    section = tuned.section()
    both = model_in_use("cpu-a", "complex128", {"complex128": section, "float64": section}).calibration
    alone = model_in_use("cpu-a", "complex128", {"complex128": section}).calibration
    assert both is not None and alone is not None
    assert set(both.rates) == {"complex128", "float64"} and set(alone.rates) == {"complex128"}
    damaged = model_in_use("cpu-a", "complex128", {"complex128": section, "float64": {}})
    assert damaged.calibration == alone
    with pytest.raises(ConfigError):
        model_in_use("cpu-a", "float64", {"float64": {}})


# ---- in short


def test_in_short_answers_whether_fmm_helps_and_what_is_next() -> None:
    doubted = tuned.section(doubts=["nobody looked"])
    gains = tuned.section(tuned.entry((4096, 4096, 4096), speedup=1.17))
    types = [TypeInShort(t, model_in_use("cpu-a", t, {t: s})) for t, s in (("float32", gains), ("float64", doubted))]
    head, columns, one, two = in_short(types)
    assert head == "Square products by fmm.matmul, beside NumPy's product:" and columns.split()[0] == "type"
    assert one.split()[:2] == ["float32", "256"] and one.endswith("1.17 at 4096")
    assert two.split() == ["float64", "not", "used"]
    (again,) = next_steps("cpu-a", types, True, "c.json")
    assert again == "Next: `fmm-tune --device cpu --dtype float64`, when nothing else runs on the device."
    assert list(next_steps("cpu-a", types[:1], True, "c")) == [
        "Nothing is left to do: fmm.matmul reads this config by itself."
    ]
    (elsewhere,) = next_steps("cpu-a", types[:1], False, "c.json")
    assert "unless FMM_CONFIG=c.json names it" in elsewhere


def test_levels_say_where_fmm_goes_by_more_than_they_are_of() -> None:
    """Of what was measured alone; a leaf that no tuning measures, or real products, may come before them."""
    thresholds = {**TYPES["float32"]["thresholds"], "tau1": {"value": 4096.0, "low": 4096.0, "high": 4096.0}}
    older = "\n".join(described({**without_three_products(), "thresholds": thresholds}, "float32", KEY))
    assert "(by what was measured: f16x3, which was not, is predicted to be faster" in older
    section = tuned.section(thresholds=TYPES["float64"]["thresholds"])
    both = "\n".join(described(section, "complex128", "cpu-a", {"float64": section}))
    assert "(by the rates of complex products; what is gained above" in both
    assert "(by the rates" not in "\n".join(described(section, "complex128", "cpu-a"))


def told_of(dtype: str, **found: Any) -> str:
    thresholds = {**TYPES["float64"]["thresholds"], "alpha": 8e-12, "pi": 2e-14, "n1": 1500.0, **found}
    return "\n".join(text for _, text in described_rows(tuned.section(thresholds=thresholds), dtype, "cpu-a"))


def test_the_recursion_point_can_be_computed_from_what_is_told() -> None:
    """Of complex numbers Equation 2 counts a flop for four of pi's."""
    assert "alpha / (4 pi) = 100: one level pays from n1 = 15 alpha / (4 pi) = 1500 on" in told_of("complex128")
    assert "alpha / pi = 100: one level pays from n1 = 15 alpha / pi = 1500 on" in told_of("float64")
    assert "added to alpha / (4 pi): 120 in the place of 100" in told_of("complex128", epsilon=20.0)


def test_measured_squares_are_those_that_were_timed() -> None:
    one = told_of("float64", n1_measured=None, one_level={"12800": 1.06})
    assert "measured: it pays on all squares that were timed (one level over the library: 1.06 at 12800)" in one
    lost = told_of("float64", n1_measured=None, one_level={"512": 0.26, "704": 0.24})
    assert "measured: it does not pay yet on the largest square that was timed (" in lost


def test_only_huangs_strategies_are_said_to_be_huangs() -> None:
    both = told_of("float64", block_strategy={"512": "Small", "1024": "Trio"})
    assert "by Huang's strategies and ours (Trio): Small at 512, Trio at 1024" in both
    assert "by Huang's strategies: Small at 512" in told_of("float64", block_strategy={"512": "Small"})


def test_what_fmm_does_where_a_tuning_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FMM_CONFIG", raising=False)
    assert "measures in each process" in instead(Identity("cpu-a", "a"), "float64")
    card = Identity(KEY, "NVIDIA H200")
    assert instead(card, "float32") == "fmm goes by the model that comes with it for such cards"
    assert instead(card, "complex64") == "fmm goes by the datasheet alone"
    monkeypatch.setenv("FMM_CONFIG", "mine.json")  # then that alone is read
    assert instead(card, "float32") == "fmm goes by the datasheet alone"
    assert "the library's own" in instead(Identity("cuda-9.0-1sm", "a card"), "float32")
