"""Which model a section stands for: with what its tuning did not measure, and with what is known of real numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from fmm.tuner.findings.advice import TO_ITS_END, tuning_advice
from fmm.tuner.findings.described import described, described_rows

from fmm.config import files, schema
from fmm.config.files import SHIPPED
from fmm.config.identity import Identity
from fmm.config.schema import ConfigError
from fmm.kernels.leaves import F16X3_RATE
from fmm.perfmodel.choose import Limits, choose
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.problem import Problem
from fmm.runtime.decisions.decide import decide_plan
from fmm.runtime.devices import gpu_from_description
from fmm.tuner.findings.diagnostics import machine_diagnostics
from fmm.tuner.findings.model_in_use import (
    answer_for,
    device_name,
    fallback_model,
    guess_of,
    model_in_use,
    unmeasured_leaves,
    usual_limits,
)
from fmm.tuner.findings.summary import TypeSummary, in_short, next_steps
from tests.support import ROOT
from tests.support import configs as tuned

KEY, TYPES = next(iter(files.read_config(SHIPPED).items()))  # an H200


def without_three_products() -> dict[str, Any]:
    """The float32 section of a tuning that is older than the leaf f16x3."""
    known = schema.read_calibration(TYPES["float32"]["calibration"], "", "float32", "", "")
    older = replace(known, rates=MappingProxyType({x: r for x, r in known.rates.items() if x == "float32"}))
    return {**TYPES["float32"], "calibration": schema.calibration_fields(older, "float32")}


def test_a_gpu_is_known_by_its_key_and_name() -> None:
    found = guess_of("cuda-9.0-132sm-nvidia-h200", "NVIDIA H200")
    assert found is not None and found.name == "H200"
    assert guess_of("cuda-9.0-132sm", "NVIDIA H200") == found  # an older key
    assert guess_of("cuda-9.0-114sm-nvidia-h200", "NVIDIA H200") is None  # a part of one
    assert guess_of("cpu-a-2t", "NVIDIA H200") is None
    assert device_name(KEY, TYPES["float32"]) == "NVIDIA H200" and device_name("cpu-a", {"conditions": None}) == "cpu-a"


@pytest.mark.parametrize("dtype", TYPES)
def test_it_is_the_one_by_which_products_are_decided(
    dtype: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FMM_CONFIG", str(SHIPPED))
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
def test_what_is_told_of_squares_is_what_is_decided(dtype: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tuning that has entries: at their sides by them, at others by the model. In float32 by the model at all: the
    tuning is from before f16x3, by which that takes a third of the entry's time."""
    path = ROOT / "results" / "nvidia-h200" / "config.json"
    ((key, types),) = files.read_config(path).items()
    monkeypatch.setenv("FMM_CONFIG", str(path))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.delenv("FMM_DISABLE", raising=False)
    files.clear_config_cache()
    used, found = model_in_use(key, dtype, types), {}
    for side in (2000, 16000, 16384, 40960, 57344, 64000):
        problem = Problem(side, side, side, dtype)
        limits, answer = usual_limits(used, problem), answer_for(used, side)
        assert limits is not None and answer is not None
        decided = decide_plan(problem, limits, gpu_from_description("NVIDIA H200", "9.0", 132))
        assert (answer.plan, answer.entry is not None) == (decided.plan, "entry" in decided.step), side
        assert answer.workspace == decided.workspace and answer.error_growth == decided.error_growth
        found[side] = answer.known
    files.clear_config_cache()
    assert found[16384] == ("predicted" if dtype == "float32" else "measured")
    assert found[16000] == found[64000] == "predicted"


def test_a_leaf_that_a_tuning_did_not_measure_goes_by_the_datasheet_and_is_named() -> None:
    """Since the tuning is older than the leaf, or was stopped early: it is treated as those that no tuning measures."""
    section, sheet = without_three_products(), datasheet_calibration("H200")
    used = model_in_use(KEY, "float32", {"float32": section})
    assert used.left_out == ("f16x3",) and used.failed == () and used.calibration is not None
    beside = used.calibration.rates["float32"].flops / sheet.rates["float32"].flops
    for name in (F16X3_RATE, "residues(8) > bytes"):
        assert used.calibration.rates[name].flops == pytest.approx(beside * sheet.rates[name].flops)
    told = " ".join("\n".join(described(section, "float32", KEY)).split())
    assert "Plans that end in f16x3 go by the datasheet: this tuning did not measure them" in told
    assert "f16x3" in told.partition("squares")[2].partition("besides")[0]
    short = TypeSummary("float32", used)
    assert "float32: what is predicted is by f16x3, at the datasheet's speed." in "\n".join(in_short([short]))
    commands = next_steps(KEY, [short], True, "x")
    assert any(re.match(r"  fmm-tune --device 0 --dtype float32  +measures what goes by the", x) for x in commands)
    assert model_in_use(KEY, "float32", TYPES).left_out == ()


def test_a_leaf_that_failed_is_not_taken_and_that_is_said() -> None:
    section = {**without_three_products(), "failed": [F16X3_RATE]}
    used = model_in_use(KEY, "float32", {"float32": section})
    assert used.failed == ("f16x3",) and used.left_out == ()
    assert used.calibration is not None and F16X3_RATE not in used.calibration.rates
    told = "\n".join(described(section, "float32", KEY))
    assert "Plans that end in f16x3 are not taken: they failed when they were measured" in told


def test_what_no_tuning_measures_goes_by_the_datasheet_and_is_named() -> None:
    """If a plan by it is chosen: float64's by residues are, float32's are not."""
    assert "residues(8) > bytes" in model_in_use(KEY, "float32", {"float32": without_three_products()}).assumed
    assert model_in_use(KEY, "bfloat16", TYPES).assumed == ()
    assert "residues" not in "\n".join(described(without_three_products(), "float32", KEY))
    used = model_in_use(KEY, "float64", TYPES)
    chosen = unmeasured_leaves(used)
    assert set(chosen) <= {*used.assumed, *used.left_out}
    told = one_line(described(TYPES["float64"], "float64", KEY))
    assert all((f"Plans that end in {leaf}" in told) == (leaf in chosen) for leaf in used.assumed)


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
    types = [TypeSummary(t, model_in_use("cpu-a", t, {t: s})) for t, s in (("float32", gains), ("float64", doubted))]
    head, columns, one, two, by_the_model, timed, why, without = in_short(types)
    assert head == "How many times as fast fmm.matmul is as NumPy's product on square matrices, by their side (rows):"
    assert by_the_model == "  By the model: at 16000, or at the first side that gains."
    assert timed.startswith("  Timed were only the sizes that are listed")
    assert columns.split()[0] == "type"
    assert one.split()[:3] == ["float32", "about", "256"] and one.endswith("1.17 at 4096")
    assert two.split() == ["float64", "not", "used"] and why == "float64: not used. Nobody looked."
    assert "measures this processor for a moment" in without
    said = list(next_steps("cpu-a", types, True, "c.json"))
    assert said[0] == "What to type next:"
    assert said[1].split("  ")[1] == "fmm-tune --device cpu --dtype float64" and said[1].endswith(TO_ITS_END)
    assert next(next_steps("cpu-a", types[:1], True, "c")) == (
        "Nothing is left to do: fmm.matmul reads this config by itself."
    )
    more = list(next_steps("cpu-a", types, True, "c", ["float32", "float64"]))
    assert any(re.match(r"  fmm-tune --device cpu --dtype float32 +goes on: ", line) for line in more)
    elsewhere = list(next_steps("cpu-a", types[:1], False, "c.json"))
    assert "unless FMM_CONFIG=c.json names it" in elsewhere[0]
    assert any("fmm-tune report c.json " in line for line in elsewhere)


def test_what_to_type_is_the_same_sentence_wherever_it_stands() -> None:
    section = tuned.section(doubts=["nobody looked"])
    used = model_in_use("cpu-a", "float64", {"float64": section})
    assert (
        tuning_advice("cpu-a", ["float64"]) == f"To change that: `fmm-tune --device cpu --dtype float64` {TO_ITS_END}."
    )
    assert tuning_advice("cpu-a", ["float64"]) in one_line(described(section, "float64", "cpu-a"))
    said = one_line(next_steps("cpu-a", [TypeSummary("float64", used)], True, "c.json"))
    assert f"fmm-tune --device cpu --dtype float64 {TO_ITS_END}" in said


def test_figures_of_a_disturbed_tuning_are_not_told() -> None:
    """Of one that is not used for another reason they are."""
    for doubt, told in ((*machine_diagnostics(0.34, None, None), False), ("the tuning ended too early", True)):
        section = tuned.section(doubts=[doubt], noise=0.34, thresholds=TYPES["float64"]["thresholds"])
        said = one_line(described(section, "float64", "cpu-a"))
        assert ("Rates and thresholds: too disturbed to say." in said) != told
        assert all((word in said) == told for word in ("Gflop/s", "tau1", "alpha =", "n1"))
        assert "The same product, timed twice, differs by up to 34.0%." in said


def test_as_json_it_says_what_fmm_matmul_does() -> None:
    """A measured side by its entry, others by the model; the same as is printed."""
    section = tuned.section(tuned.entry((4096, 4096, 4096), speedup=1.17))
    found = TypeSummary("float64", model_in_use("cpu-a", "float64", {"float64": section})).fields
    squares = {row["side"]: row for row in found["squares"]}
    assert squares[4096]["known"] == "measured" and squares[4096]["speedup"] == 1.17
    assert squares[4096]["plan"] == "winograd > vendor" and squares[8000]["known"] == "predicted"
    assert found["faster_from"] == 256 and found["levels_from"][0] == 256


def test_levels_say_where_fmm_goes_by_more_than_they_are_of() -> None:
    """Of what was measured alone; a leaf that no tuning measures, or real products, may come before them."""
    thresholds = {**TYPES["float32"]["thresholds"], "tau1": {"value": 4096.0, "low": 4096.0, "high": 4096.0}}
    older = one_line(described({**without_three_products(), "thresholds": thresholds}, "float32", KEY))
    assert "since it has f16x3 too. That was not measured: the thresholds leave it out." in older
    section = tuned.section(thresholds=TYPES["float64"]["thresholds"])
    both = one_line(described(section, "complex128", "cpu-a", {"float64": section}))
    assert "since it can make real products of complex ones (3m), by the rates of real ones" in both
    assert "rates of real ones" not in one_line(described(section, "complex128", "cpu-a"))


def one_line(lines: Iterable[str]) -> str:
    return " ".join(" ".join(lines).split())


def told_of(dtype: str, **found: Any) -> str:
    thresholds = {**TYPES["float64"]["thresholds"], "alpha": 8e-12, "pi": 2e-14, "n1": 1500.0, **found}
    return "\n".join(text for _, text in described_rows(tuned.section(thresholds=thresholds), dtype, "cpu-a"))


def test_the_recursion_point_can_be_computed_from_what_is_told() -> None:
    """Of complex numbers Equation 2 counts a flop for four of pi's."""
    assert "alpha / (4 pi) = 100. It pays from n1 = 15 alpha / (4 pi) = 1500 on" in told_of("complex128")
    assert "alpha / pi = 100. It pays from n1 = 15 alpha / pi = 1500 on" in told_of("float64")
    corrected = told_of("complex128", epsilon=20.0)
    assert (
        "the least that must be added to alpha / (4 pi) so that" in corrected
        and ": +20, 120 in the place of 100." in corrected
    )


def test_measured_squares_are_those_that_were_timed() -> None:
    one = told_of("float64", n1_measured=None, one_level={"12800": 1.06})
    assert "is so many times as fast: 1.06 at 12800." in one and "It pays on the one square that was timed." in one
    two = told_of("float64", n1_measured=None, one_level={"12800": 1.06, "16000": 1.07})
    assert "It pays on both squares that were timed." in two
    lost = told_of("float64", n1_measured=None, one_level={"512": 0.26, "704": 0.24})
    assert "It does not pay yet on the largest square that was timed." in lost
    first = told_of("float64", n1_measured=704.0, one_level={"512": 0.9, "704": 1.02})
    assert "n1 as measured: it pays from 704 on, the first square from which on all gained." in first


@pytest.mark.parametrize(
    ("epsilon", "one_level", "said"),
    [
        (None, {"512": 0.9, "704": 0.95}, "is not determined: that takes products that gained"),
        (0.0, {"12800": 1.06}, "is not determined"),  # as older configs have it
        (0.0, {"512": 0.9, "704": 1.02}, ": 0, nothing is to be corrected."),
        (20.0, {"512": 0.9, "704": 1.02}, ": +20, 120 in the place of 100."),
    ],
)
def test_epsilon_is_told_where_it_is_determined(epsilon: Any, one_level: dict[str, float], said: str) -> None:
    assert said in one_line([told_of("float64", epsilon=epsilon, one_level=one_level)])


def test_more_than_one_saved_product_is_explained() -> None:
    """Seven products of halves in place of eight cannot gain more, unless halves are multiplied faster."""
    why = "the library is faster on halves of that size than on the whole"
    assert why in told_of("float64", one_level={"4096": 1.05, "8192": 1.15})
    assert why not in told_of("float64", one_level={"4096": 1.05, "8192": 1.14})


def test_only_huangs_strategies_are_said_to_be_huangs() -> None:
    both = told_of("float64", block_strategy={"512": "Small", "1024": "Trio"})
    assert "(Huang, Yu and van de Geijn's strategies, Trio being ours): Small at 512, Trio at 1024." in both
    assert "de Geijn's strategies): Small at 512." in told_of("float64", block_strategy={"512": "Small"})


def test_what_fmm_does_where_a_tuning_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FMM_CONFIG", raising=False)
    assert "measures this processor for a moment" in fallback_model(Identity("cpu-a", "a"), "float64")
    card = Identity(KEY, "NVIDIA H200")
    assert fallback_model(card, "float32") == "fmm goes by the model that comes with it for such cards"
    assert fallback_model(card, "complex64") == "fmm goes by the datasheet alone"
    monkeypatch.setenv("FMM_CONFIG", "mine.json")  # then that alone is read
    assert fallback_model(card, "float32") == "fmm goes by the datasheet alone"
    assert "the library's own" in fallback_model(Identity("cuda-9.0-1sm", "a card"), "float32")
