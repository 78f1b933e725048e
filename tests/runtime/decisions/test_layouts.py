"""Plans whose leaf is slow where B lies column by column: chosen, certified, remembered for other layouts alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np
import pytest

from fmm.arrays.library import Library
from fmm.config import files
from fmm.config.files import SHIPPED_CONFIG
from fmm.config.schema import Tuning, read_section
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits, problem_for_ranking
from fmm.perfmodel.predict import COLUMN_MAJOR_B_FACTOR, is_slow_on_column_major_b, predict
from fmm.problem import Layout, Problem, reduced_problem
from fmm.runtime.decisions.decide import Decision, decide_by_model, decide_plan, find_certified_entry
from fmm.runtime.decisions.early_declines import remember_decline, was_declined
from tests.support.configs import entry
from tests.support.devices import H200


class OnDevice:
    """What is asked of a library of arrays on a device."""

    processor = "cuda"

    def __init__(self) -> None:
        self.cached_calls: dict[object, float] = {}

    @staticmethod
    def decline_key_without_sizes(a: Any, b: Any) -> object:
        return a.dtype, b.dtype


IEEE = Limits(1 << 35, 16.0, emulation=False)
SIDES = (1024, 3000, 4096, 6144)


def laid(a: str, b: str, side: int, dtype: str = "float32") -> Problem:
    layouts = [Layout("C" if order == "N" else "F", side) for order in (a, b, "N")]
    return Problem(side, side, side, dtype, (layouts[0], layouts[1], layouts[2]))


@pytest.fixture(autouse=True)
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMM_TUNING_MODE", "off")


@pytest.mark.parametrize(("a", "side"), [*product("NT", SIDES)])
def test_float32_of_columns_is_no_product_of_our_tiles(a: str, side: int) -> None:
    raw = files.read_config(SHIPPED_CONFIG)[H200.identity.key]["float32"]
    known = read_section(raw, "float32", H200.identity, "float32").trusted_calibration
    rows, columns = (decide_by_model(laid(a, b, side), IEEE, known, True, H200.identity).plan for b in "NT")
    assert columns.leaf != "tile"
    assert rows.leaf == "tile" or rows == columns == VENDOR


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "complex64"])
def test_how_operands_lie_changes_no_other_choice(dtype: str) -> None:
    limits = replace(IEEE, emulation=True)
    for side in SIDES:
        plans = {decide_plan(laid(a, b, side, dtype), limits, H200).plan for a, b in product("NT", "NT")}
        assert len(plans) == 1, (side, plans)


def test_the_model_says_by_how_much() -> None:
    assert H200.guess is not None
    tile, problem = Plan.parse("tile"), laid("N", "T", 4096)
    turned, plain = (
        predict(tile, x, H200.guess).products for x in (problem_for_ranking(problem, True), reduced_problem(problem))
    )
    assert turned == pytest.approx(COLUMN_MAJOR_B_FACTOR * plain)
    assert (
        problem_for_ranking(laid("T", "N", 4096), True)
        == problem_for_ranking(problem, False)
        == reduced_problem(problem)
    )
    assert not is_slow_on_column_major_b(Plan.parse("tile.outer").leaf_use, "float32")


def test_an_entry_was_measured_on_rows() -> None:
    known = entry((4096, 4096, 4096), "strassen.batched.pad16 > tile")
    tuned = Tuning(H200.identity, "float32", None, {known.entry_key: known})
    found = [find_certified_entry(laid(a, b, 4096), IEEE, tuned) for a, b in product("NT", "NT")]
    assert [x is not None for x in found] == [True, False, True, False]


def test_columns_are_not_remembered_for_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.ones((2048, 2048), np.float32)
    library = cast(Library, OnDevice())
    remember_decline(library, a, a.T, Decision(VENDOR, laid("N", "T", 2048), ""))
    assert not was_declined(library, a, a)
    remember_decline(library, a, a, Decision(VENDOR, laid("N", "N", 2048), ""))
    assert was_declined(library, a, a)
