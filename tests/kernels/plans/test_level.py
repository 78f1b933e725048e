"""What any level says of itself when it says nothing, and a level that changes the type of the numbers below it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

import pytest

from fmm.dtypes import INTEGERS, RING_TYPES
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.leaf import (
    Leaf,
    leaf_names,
    leaves_by_text,
    parse_leaf,
    register_leaf,
    unregister_leaf,
)
from fmm.kernels.plans.level import Level, LevelKind, parse_level, register_level, unregister_level
from fmm.kernels.plans.lower import LevelWithSteps, lower_level, require_level_with_steps
from fmm.kernels.plans.memory_layout import temporary_bytes
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.steps import LevelSteps, Product, temporary_sizes
from fmm.kernels.plans.sums import COPY_PROGRAM, Sum, whole_matrix
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel import Calibration, Problem, cost, predict
from fmm.perfmodel.calibration import ProductRate
from fmm.perfmodel.choose import rank_candidates


class Narrow(LevelWithSteps):
    """A product in numbers of half the size (its error is no matter here)."""

    def dtype_of_products(self, dtype: str) -> str:
        return {"float64": "float32", "complex128": "complex64"}.get(dtype, dtype)

    def itemsize_of_products(self, itemsize: int) -> int:
        return itemsize // 2

    def lower_product(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        left, right, product = whole_matrix("S", m, k), whole_matrix("T", k, n), whole_matrix("M", m, n)
        steps: list[Sum | Product] = [Sum("narrow", COPY_PROGRAM, (whole_matrix("A", m, k),), (left,))]
        steps.append(Sum("narrow", COPY_PROGRAM, (whole_matrix("B", k, n),), (right,)))
        steps.append(Product(left, right, product, plan.inner_plan))
        steps.append(Sum("widen", COPY_PROGRAM, (product,), (whole_matrix("C", m, n),)))
        return LevelSteps(temporary_sizes(steps), tuple(steps))


@pytest.fixture
def narrow() -> Iterator[Plan]:
    register_level(
        LevelKind(
            "narrow", lambda text: Narrow(text="narrow", products=1) if text == "narrow" else None, lambda: ("narrow",)
        )
    )
    try:
        yield Plan.parse("narrow > vendor")
    finally:
        unregister_level("narrow")


def test_a_level_that_says_nothing_more_is_a_cautious_one(narrow: Plan) -> None:
    (level,) = narrow.levels
    assert level.saves_products and level.splits and level.depth == 1
    assert not (
        level.takes_alpha_beta
        or level.is_batched
        or level.has_independent_products
        or level.has_fused_sums
        or level.needs_extra_streams
    )
    assert level.stream_count == 1 and level.launch_count == level.products and level.bilinear is None
    assert require_level_with_steps(level).estimate_level_work(VENDOR, (8.0, 8.0, 8.0)) is None and level.cut is None


def test_a_level_may_change_the_type_of_the_numbers(narrow: Plan) -> None:
    assert narrow.leaf_type("float64") == "float32" and VENDOR.leaf_type("float64") == "float64"
    assert Plan.parse("strassen > narrow > vendor").leaf_type("complex128") == "complex64"
    size = 96, 64, 80
    below = sum(temporary_bytes(*shape, 4) for shape in ((96, 64), (64, 80), (96, 80)))
    assert plan_workspace_bytes(narrow, *size, 8) == cost(narrow, *size, 8).workspace == below
    assert cost(narrow, *size, 8).leaf_bytes == cost(VENDOR, *size, 4).leaf_bytes
    # What is around it is of the type that was asked for.
    assert plan_workspace_bytes(narrow, *size, 8, 2, 1) == temporary_bytes(96, 80, 8) + below


def test_its_products_take_the_time_of_their_type(narrow: Plan) -> None:
    rates = {"float64": ProductRate(1e10, 0.0, 0.0), "float32": ProductRate(1e11, 0.0, 0.0)}
    known = Calibration("test", "test", MappingProxyType(rates), stream=1e15)
    problem = Problem(512, 512, 512)
    assert predict(narrow, problem, known).products == pytest.approx(2 * 512**3 / 1e11)
    assert rank_candidates(problem, known, [narrow])
    unmeasured = replace(known, rates=MappingProxyType({"float64": rates["float64"]}))
    assert not rank_candidates(problem, unmeasured, [narrow])


def test_a_leaf_is_for_the_types_below_the_levels(narrow: Plan) -> None:
    assert not Plan.parse("tile").is_candidate_for("float64")
    assert Plan.parse("narrow > tile").is_candidate_for("float64")  # which are float32


class Stepless(Level):
    """A level with a text and no steps."""


def test_a_level_without_steps_is_refused_where_steps_are_wanted() -> None:
    plan = Plan((Stepless(text="stepless", products=1),), "vendor")
    assert str(plan) == "stepless > vendor"
    with pytest.raises(PlanError, match="stepless has no methods that return its steps"):
        lower_level(plan, 8, 8, 8)


NON_RECURSIVE = [
    # (text, its products, are they smaller, are there fewer multiplications)
    ("scaled", 1, False, False),
    ("scaled.outside", 1, False, False),
    ("balanced", 1, True, False),
    ("quarters", 1, True, False),
    ("3m", 3, False, True),
    ("3m.sequential.conj-a", 3, False, True),
]


@pytest.mark.parametrize(("text", "products", "splits", "saves"), NON_RECURSIVE)
def test_what_is_no_level_of_recursion_says_so_once(text: str, products: int, splits: bool, saves: bool) -> None:
    level = parse_level(text)
    assert not level.depth and level.level_with_less_recursion is None
    assert (level.products, level.splits, level.saves_products) == (products, splits, saves)
    assert Plan.parse(f"{text} > strassen > vendor").depth == 1


# ---- leaves


USES = [
    # (text, who multiplies, number, options, order)
    ("vendor", "vendor", None, (), None),
    ("vendor.outer", "vendor", None, (), "outer"),
    ("lt31.inner", "lt31", 31, (), "inner"),
    ("tile.gpu8.texture.outer", "tile.gpu8.texture", None, ("gpu8", "texture"), "outer"),
    ("tile.plain", "tile.plain", None, ("plain",), None),
]


@pytest.mark.parametrize(("text", "product", "number", "options", "order"), USES)
def test_what_a_leafs_text_says(
    text: str, product: str, number: int | None, options: tuple[str, ...], order: str | None
) -> None:
    use = parse_leaf(text)
    assert (str(use), use.kernel_text, use.number, use.options, use.order) == (text, product, number, options, order)
    assert Plan((), text).leaf_use is use


@pytest.mark.parametrize(
    "text", ["", "lt", "lt32", "vendor.huge", "tile.plain.huge", "tile.inner.huge", "tile.inner.outer", "small.inner"]
)
def test_what_is_no_leaf(text: str) -> None:
    with pytest.raises(PlanError, match=r"unknown leaf .*; valid: vendor, lt0 to lt31, .*each with .*; small without;"):
        parse_leaf(text)


TYPES = [
    # (plan, the types that its leaf multiplies there)
    ("tile", {"float32", "float64", "float16", "bfloat16", "tf32"}),
    ("tile.plain", {"float32", "float64"}),
    ("strassen > f16x3", {"float32"}),
    ("tile.square", {"float32"}),
    ("tile.solo.texture", {"float64"}),
    ("strassen > tile", {"float32", "float64", "float16", "bfloat16", "tf32"}),
    ("strassen.fused > tile", {"float32", "float64"}),  # with sums inside
    ("strassen.fused.peel > tile", {"float32", "float64", "float16", "bfloat16", "tf32"}),  # that has none inside
    ("li-fig12 > tile", {"float32", "float64"}),
    ("li-fig12 > tile.gpu8", {"float32", "float64"}),
    ("quarters > residues > bytes", set(INTEGERS)),  # without sums
    ("quarters > quarters > digits", set(INTEGERS)),
    ("quarters > strassen > digits", set(RING_TYPES)),
    ("quarters > vendor", set(Plan.parse("strassen > vendor").leaf_types)),
]


@pytest.mark.parametrize(("text", "types"), TYPES)
def test_which_types_a_leaf_multiplies(text: str, types: set[str]) -> None:
    assert set(Plan.parse(text).leaf_types) == types


def test_a_leaf_that_comes_is_named_in_every_message() -> None:
    register_leaf(Leaf("mine", "a leaf of mine", ("cpu",), types=("float64",), numbers=2))
    try:
        assert (
            leaf_names()[:3] == ("vendor", "lt", "tile")
            and leaf_names()[-1] == "mine"
            and "mine1.inner" in leaves_by_text()
        )
        with pytest.raises(
            PlanError, match=r"a plan ends in its leaf: vendor, lt0 to lt31, .*mine0 to mine1, each with"
        ):
            Plan.parse("mine2")
    finally:
        unregister_leaf("mine")
    assert leaf_names()[:3] == ("vendor", "lt", "tile") and "mine" not in leaf_names()
