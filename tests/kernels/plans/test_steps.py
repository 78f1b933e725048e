"""Recipes: how a level is cut and sized, what workspace and which leaf products a plan needs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, aligned_block
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.sum_schedule import schedule_elementwise_calls
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.plans.levels.scheme_level import SchemeLevel
from fmm.kernels.plans.lower import BAND_ELEMENTS, MIN_BAND_ROWS, lower_level
from fmm.kernels.plans.memory_layout import ALIGN_BYTES, leading_dimension, temporary_bytes
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelSteps, ProductBatch
from fmm.kernels.plans.sums import Mirror, Place, Sum, block_side, cut_side_into_parts, operand_blocks, whole_matrix
from fmm.kernels.plans.workspace import count_leaf_products, leaf_flops, plan_workspace_bytes

Array = np.ndarray[Any, np.dtype[Any]]
Size = tuple[int, int, int]

# ---- cutting

CUTS = [
    # (length, parts, unit or None for unequal blocks, sizes)
    (8, 2, None, [4, 4]),
    (7, 2, None, [4, 3]),
    (7, 2, 1, [4, 3]),
    (9, 4, None, [3, 2, 2, 2]),
    (9, 4, 1, [3, 3, 3, 0]),
    (10, 4, 1, [3, 3, 3, 1]),
    (1, 2, None, [1, 0]),
    (1, 3, 1, [1, 0, 0]),
    (0, 2, None, [0, 0]),
    (0, 2, 1, [0, 0]),
    (9, 2, 4, [8, 1]),
    (33, 2, 16, [32, 1]),
    (32, 2, 16, [16, 16]),
]


@pytest.mark.parametrize(("length", "parts", "unit", "sizes"), CUTS)
def test_cuts(length: int, parts: int, unit: int | None, sizes: list[int]) -> None:
    assert [size for _, size in cut_side_into_parts(length, parts, unit)] == sizes


@given(st.integers(0, 200), st.integers(1, 9), st.sampled_from([None, 1, 4, 16]))
def test_cuts_tile_the_side(length: int, parts: int, unit: int | None) -> None:
    found = cut_side_into_parts(length, parts, unit)
    assert len(found) == parts
    assert found[0][0] == 0
    assert all(start + size == after for (start, size), (after, _) in pairwise(found))
    assert sum(found[-1]) == length
    sizes = [size for _, size in found]
    assert sizes == sorted(sizes, reverse=True)
    if unit is None:
        assert max(sizes) - min(sizes) <= 1
        return
    full = block_side(length, parts, unit)
    assert full % unit == 0
    assert length <= full * parts < length + parts * unit, "no larger than it must be"
    assert sizes == [min(full, max(length - i * full, 0)) for i in range(parts)]


def test_blocks_are_row_major() -> None:
    assert operand_blocks("A", 3, 5, (2, 2), None) == [
        Place("A", 0, 0, 2, 3),
        Place("A", 0, 3, 2, 2),
        Place("A", 2, 0, 1, 3),
        Place("A", 2, 3, 1, 2),
    ]
    assert [(p.rows, p.cols) for p in operand_blocks("A", 3, 5, (2, 2), 4)] == [(3, 4), (3, 1), (0, 4), (0, 1)]


def test_cropping_never_enlarges() -> None:
    assert Place("A", 2, 3, 4, 5).cropped_place(9, 1) == Place("A", 2, 3, 4, 1)


# ---- one level

ALL_SIZES = list(product((0, 1, 2, 3, 5), repeat=3))


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    "text",
    [
        "strassen",
        "hk233.pad",
        "laderman.sequential",
        "li-fig3",
        "hasa",
        "dps.peel",
        "balanced",
        "winograd.batched",
        "hk233.batched.pad4",
        "strassen.pad8",
    ],
)
def test_recipes_stay_inside_their_places(text: str) -> None:
    """Every rectangle lies within its operand or temporary, and every product's sides fit."""
    plan = Plan.parse(f"{text} > vendor")
    for size in ALL_SIZES:
        recipe = lower_level(plan, *size)
        assert recipe is not None
        check_recipe(recipe, *size)


def check_recipe(recipe: LevelSteps, m: int, k: int, n: int) -> None:
    room = {"A": (m, k), "B": (k, n), "C": (m, n), **{name: (r, c) for name, r, c in recipe.temporaries}}
    assert len(room) == 3 + len(recipe.temporaries), "a temporary's name is taken"
    for step in recipe.flattened_steps:
        assert not isinstance(step, Mirror)
        places = (*step.reads, *step.writes) if isinstance(step, Sum) else (step.left, step.right, step.dest)
        for place in places:
            rows, cols = room[place.name]
            assert place.row + place.rows <= rows
            assert place.col + place.cols <= cols
        if not isinstance(step, Sum):
            assert step.left.cols == step.right.rows
            assert (step.left.rows, step.right.cols) == (step.dest.rows, step.dest.cols)
        else:
            assert not {p.name for p in step.writes} & {"A", "B"}


def test_a_lone_block_is_read_in_place() -> None:
    recipe = lower_level(Plan.parse("strassen > vendor"), 4, 4, 4)
    assert recipe is not None
    names = [name for name, _, _ in recipe.temporaries]
    # M3 = A11 (...), M4 = A22 (...) and M2 = (...) B11, M5 = (...) B22 need no copy of their blocks.
    # Four of the products are computed where the blocks of C belong.
    assert names == ["S1", "S2", "S5", "S6", "S7", "T1", "T3", "T4", "T6", "T7", "M2", "M3", "M6"]


@pytest.mark.parametrize(
    ("text", "size", "at_home"),
    [
        ("winograd > vendor", (8, 8, 8), 4),
        ("winograd > vendor", (8, 9, 8), 4),  # an odd inner side leaves C's blocks as large as the products
        ("winograd > vendor", (9, 8, 9), 3),  # no product is as small as C22
        ("classical > vendor", (8, 8, 8), 4),
        ("laderman > vendor", (9, 9, 9), 9),
        ("winograd.pad > vendor", (8, 8, 8), 4),
        ("winograd.batched > vendor", (8, 8, 8), 0),  # a batch's products stand at equal distances
    ],
)
def test_products_are_computed_where_c_stands(text: str, size: tuple[int, int, int], at_home: int) -> None:
    recipe = lower_level(Plan.parse(text), *size)
    assert recipe is not None
    homes = [(p.dest.row, p.dest.col) for p in recipe.products if p.dest.name == "C"]
    assert len(homes) == len(set(homes)) == at_home


def test_a_product_that_is_added_to_c_does_not_overwrite_it() -> None:
    recipe = lower_level(Plan.parse("winograd > vendor"), 8, 8, 8, 1, 1)
    assert recipe is not None
    assert "C" not in {p.dest.name for p in recipe.products}


@pytest.mark.parametrize(("name", "calls"), [("winograd", 7), ("strassen", 8)])
def test_the_join_in_place_needs_no_copies(name: str, calls: int) -> None:
    """Every block of C is written over a product that is read no more: as many calls as additions."""
    recipe = lower_level(Plan.parse(f"{name} > vendor"), 8, 8, 8)
    assert recipe is not None
    join = recipe.steps[-1]
    assert isinstance(join, Sum)
    found = schedule_elementwise_calls(
        join.program, (True,) * len(join.reads), (True,) * len(join.writes), join.in_place_pairs
    )
    assert [call.op for call in found.calls if call.op not in ("add", "subtract")] == []
    assert len(found.calls) == calls


TEMPORARIES = [
    # sequential: one operand of each side and one product, whatever the scheme
    ("strassen.sequential", {"S", "T", "M"}),
    ("winograd.sequential", {"S", "T", "M"}),
    ("laderman.sequential", {"S", "T", "M"}),
    # the papers' tables: what they declare, and nothing for the products
    ("li-fig2", {"T1", "T2"}),
    ("li-fig3", {"T1", "T2"}),
    ("li-fig16", {"T1", "T2"}),
    ("li-fig23", {"T1", "T2"}),
    ("hasa", {"T1", "T2", "M"}),
    ("adaptive-winograd", {"S", "T", "P", "U"}),
    # Figure 13's kernels each overwrite a block, which can hold the product; Figure 12's increments do not.
    ("li-fig13", {"T1", "T2"}),
    ("li-fig12", {"T1", "T2", "P'"}),
    # batched: all operands of a side, and all products, stand on top of each other
    ("strassen.batched", {"S", "T", "M"}),
    ("strassen.peel", set()),
    ("balanced", set()),
]


@pytest.mark.parametrize(("text", "names"), TEMPORARIES)
def test_temporaries_of_one_level(text: str, names: set[str]) -> None:
    recipe = lower_level(Plan.parse(f"{text} > vendor"), 12, 12, 12)
    assert recipe is not None
    assert {name for name, _, _ in recipe.temporaries} == names


def test_the_leaf_has_no_recipe_unless_it_must_update() -> None:
    assert lower_level(Plan(), 5, 4, 3) is None
    assert plan_workspace_bytes(Plan(), 5, 4, 3, 8) == 0
    assert lower_level(Plan(), 5, 4, 3, 2, 0) is not None


@pytest.mark.parametrize("beta", [0, 1])
@pytest.mark.parametrize("n", [500, 3000])
def test_an_updating_leaf_works_in_bands(n: int, beta: int) -> None:
    """Far smaller than C, but not so low that BLAS would do little besides packing B for each of them."""
    m, k = 5000, 7
    recipe = lower_level(Plan(), m, k, n, 2, beta)
    assert recipe is not None
    assert (
        plan_workspace_bytes(Plan(), m, k, n, 8, 2, beta)
        <= 1.02 * max(BAND_ELEMENTS, MIN_BAND_ROWS * n) * 8
        < m * n * 8 / 2
    )
    assert {s.writes[0].rows >= MIN_BAND_ROWS for s in recipe.steps[:-2] if isinstance(s, Sum)} == {True}
    bands = [(s.writes[0].row, s.writes[0].rows) for s in recipe.steps if isinstance(s, Sum)]
    assert [row for row, _ in bands] == [sum(rows for _, rows in bands[:i]) for i in range(len(bands))]
    assert sum(rows for _, rows in bands) == m
    reads_c = any(p.name == "C" for s in recipe.steps if isinstance(s, Sum) for p in s.reads)
    assert reads_c == bool(beta)


# ---- workspace

PLANS = [
    "vendor",
    "strassen > vendor",
    "winograd.sequential > vendor",
    "strassen^2 > vendor",
    "winograd.pad > strassen.sequential.peel > vendor",
    "winograd^2 > li-fig3.peel > vendor",
    "balanced(2) > hasa > vendor",
    "hasa > adaptive-winograd > vendor",
    "li-fig23 > balanced > dps > vendor",
    "li-fig13.pad > li-fig3 > vendor",
    "laderman.peel > winograd > vendor",
    "hk233.sequential > hk322.pad > vendor",
    "balanced > li-fig12 > vendor",
    "li-fig2 > vendor",
    "classical > vendor",
    "winograd.batched > vendor",
    "hk223.batched.pad4 > strassen.batched > vendor",
    "li-fig3.pad8 > winograd.pad4 > vendor",
]

SIZES: list[Size] = [
    # tiny, prime, odd, rectangular, and rows whose length in bytes is a multiple of 4096
    (0, 3, 2),
    (1, 1, 1),
    (2, 2, 2),
    (7, 7, 7),
    (31, 29, 37),
    (64, 64, 64),
    (65, 63, 67),
    (50, 20, 90),
    (3, 200, 5),
    (200, 3, 150),
    (16, 24, 1024),
]

UPDATES = [(1, 0), (1, 1), (-2, 0), (0.5, 2)]

C, F = np.ascontiguousarray, np.asfortranarray
LAYOUTS: list[tuple[Callable[[Array], Array], ...]] = [(C, C, C), (F, F, F), (C, F, F), (F, C, C)]


def small_integers(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> Array:
    return rng.integers(-2, 3, shape).astype(dtype)


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("text", PLANS)
def test_workspace_is_exactly_what_a_plan_takes(text: str, rng: np.random.Generator) -> None:
    plan, backend = Plan.parse(text), NumpyBackend(ThreadGroup(1))
    for i, (m, k, n) in enumerate(SIZES):
        if text.startswith(("li-fig2 ", "balanced > li-fig12")) and k > min(m, n):
            continue  # these keep sums of A in C
        dtype = np.dtype(("float32", "float64", "complex64", "complex128")[i % 4])
        alpha, beta = UPDATES[i % 3 if dtype.kind == "c" else (i // 2) % 4]
        for layout in LAYOUTS if i % 2 else LAYOUTS[::2]:
            shapes = ((m, k), (k, n), (m, n))
            a, b, c = (make(small_integers(rng, s, dtype.str)) for make, s in zip(layout, shapes, strict=True))
            wanted = alpha * (a @ b) + beta * c
            arena = Arena(aligned_block(plan_workspace_bytes(plan, m, k, n, dtype.itemsize, alpha, beta)), dtype)
            execute_plan(plan, a, b, c, backend, arena, alpha, beta)
            assert (arena.peak, arena.used_bytes) == (arena.memory.nbytes, 0)
            assert np.array_equal(c, wanted)


def test_an_arena_that_is_too_small_is_noticed(rng: np.random.Generator) -> None:
    plan = Plan.parse("strassen > vendor")
    a = small_integers(rng, (8, 8), "f8")
    arena = Arena(aligned_block(plan_workspace_bytes(plan, 8, 8, 8, 8) - ALIGN_BYTES), np.dtype("f8"))
    with pytest.raises(AssertionError, match="too small"):
        execute_plan(plan, a, a, a.copy(), NumpyBackend(ThreadGroup(1)), arena)


@given(st.integers(0, 5000), st.integers(0, 5000), st.sampled_from([4, 8, 16]))
def test_rows_of_temporaries(rows: int, cols: int, item: int) -> None:
    stride = leading_dimension(cols, item)
    assert cols <= stride <= cols + 2 * ALIGN_BYTES // item
    assert stride * item % ALIGN_BYTES == 0
    assert not cols or stride * item % 4096, "rows 4 KiB apart evict each other"
    size = temporary_bytes(rows, cols, item)
    assert size == temporary_bytes(cols, rows, item)
    assert size % ALIGN_BYTES == 0
    assert size >= rows * stride * item


def test_arena_gives_aligned_views_in_either_order() -> None:
    arena = Arena(aligned_block(1 << 16), np.dtype("f4"))
    first, second = arena.allocate(5, 7), arena.allocate(5, 7, fortran=True)
    assert first.shape == second.shape == (5, 7)
    assert first.strides == second.strides[::-1] == (64, 4)
    assert first.ctypes.data % ALIGN_BYTES == second.ctypes.data % ALIGN_BYTES == 0
    assert not np.shares_memory(first, second)
    mark = arena.used_bytes
    third = arena.allocate(100, 20)
    arena.free_temporaries_since(mark)
    assert np.shares_memory(third, arena.allocate(3, 3))
    assert arena.peak == mark + temporary_bytes(100, 20, 4)


@pytest.mark.parametrize("name", ["li-fig2", "li-fig3", "li-fig13", "li-fig16", "li-fig23"])
def test_two_temporaries_a_level_take_at_most_two_thirds_of_c(name: str) -> None:
    """Li, Ranka, Sahni (2011), section 1: 2 (n/2)^2 + 2 (n/4)^2 + ... is at most 2 n^2 / 3."""
    n = 384  # no row of a half, a quarter or an eighth needs rounding up to cache lines
    for depth in (1, 2, 3):
        plan = Plan.parse(" > ".join([name] * depth + ["vendor"]))
        elements = plan_workspace_bytes(plan, n, n, n, 8) / 8
        assert elements == sum(2 * (n >> i) ** 2 for i in range(1, depth + 1))
        assert elements < 2 * n * n / 3


@pytest.mark.parametrize("name", ["li-fig3", "li-fig13", "li-fig23"])
def test_odd_sides_add_little_more_than_cache_lines(name: str) -> None:
    plan = Plan.parse(" > ".join([name] * 3 + ["vendor"]))
    rows = sum(2 * -(-1001 // 2**i) for i in (1, 2, 3))
    assert plan_workspace_bytes(plan, 1001, 1001, 1001, 8) / 8 <= 2 * 1008**2 / 3 + rows * 2 * ALIGN_BYTES / 8


MEMORY = [
    # (leaner, hungrier): the traversals trade workspace for launches
    ("li-fig3 > li-fig3 > vendor", "winograd > winograd > vendor"),
    ("strassen.sequential > vendor", "strassen > vendor"),
    ("hasa > vendor", "adaptive-winograd > vendor"),
    ("winograd > winograd > vendor", "winograd^2 > vendor"),
    ("vendor", "li-fig3 > vendor"),
]


@pytest.mark.parametrize(("leaner", "hungrier"), MEMORY)
def test_workspace_orders_the_traversals(leaner: str, hungrier: str) -> None:
    assert plan_workspace_bytes(Plan.parse(leaner), 512, 512, 512, 8) < plan_workspace_bytes(
        Plan.parse(hungrier), 512, 512, 512, 8
    )


def test_temporaries_follow_the_layout_of_what_they_are_formed_from() -> None:
    recipe = lower_level(Plan.parse("strassen > vendor"), 4, 4, 4)
    assert recipe is not None
    assert {recipe.layout_operand_by_temporary[name] for name in ("S1", "S2", "S5", "S6", "S7")} == {"A"}
    assert {recipe.layout_operand_by_temporary[name] for name in ("T1", "T3", "T4", "T6", "T7")} == {"B"}
    assert {recipe.layout_operand_by_temporary[f"M{p}"] for p in (2, 3, 6)} == {"C"}


# ---- leaf products

LEAVES = [
    # (plan, size, multiset)
    ("vendor", (5, 6, 7), {(5, 6, 7): 1}),
    ("strassen > vendor", (8, 8, 8), {(4, 4, 4): 7}),
    ("strassen^2 > vendor", (64, 64, 64), {(16, 16, 16): 49}),
    ("strassen > strassen > vendor", (64, 64, 64), {(16, 16, 16): 49}),
    ("li-fig12 > li-fig16 > vendor", (64, 64, 64), {(16, 16, 16): 49}),
    ("hasa > winograd.sequential > vendor", (64, 32, 16), {(16, 8, 4): 49}),
    ("laderman > vendor", (9, 9, 9), {(3, 3, 3): 23}),
    ("hk223*hk322 > vendor", (12, 8, 12), {(2, 2, 2): 121}),
    ("smirnov336 > vendor", (9, 9, 12), {(3, 3, 2): 40}),
    # the fringe: products of unequal blocks are no larger than they must be
    ("hasa > vendor", (3, 3, 3), {(2, 2, 1): 1, (2, 2, 2): 2, (1, 2, 2): 1, (2, 1, 1): 1, (2, 1, 2): 1, (1, 1, 2): 1}),
    ("strassen.peel > vendor", (5, 4, 4), {(2, 2, 2): 7, (1, 4, 4): 1}),
    ("strassen.peel > vendor", (4, 5, 4), {(2, 2, 2): 7, (4, 1, 4): 1}),
    ("strassen.peel > vendor", (4, 4, 5), {(2, 2, 2): 7, (4, 4, 1): 1}),
    ("strassen.peel > vendor", (5, 5, 5), {(2, 2, 2): 7, (4, 1, 4): 1, (4, 5, 1): 1, (1, 5, 5): 1}),
    ("strassen.peel > vendor", (1, 9, 9), {(1, 9, 9): 1}),
    ("balanced > vendor", (8, 2, 2), {(2, 2, 2): 4}),
    ("balanced > vendor", (2, 2, 9), {(2, 2, 3): 1, (2, 2, 2): 3}),
    ("balanced > vendor", (2, 9, 2), {(2, 3, 2): 1, (2, 2, 2): 3}),
    ("balanced(4) > vendor", (8, 2, 2), {(4, 2, 2): 2}),
    ("balanced > strassen > vendor", (16, 8, 8), {(4, 4, 4): 14}),
]


@pytest.mark.parametrize(("text", "size", "expected"), LEAVES)
def test_leaf_products(text: str, size: Size, expected: dict[Size, int]) -> None:
    plan = Plan.parse(text)
    assert count_leaf_products(plan, *size) == expected
    assert leaf_flops(plan, *size) == sum(2 * prod(sides) * times for sides, times in expected.items())


BATCHES = [("strassen.batched", (8, 8, 8)), ("hk233.batched.pad4", (10, 7, 5)), ("winograd.batched.pad8", (1, 1, 1))]


@pytest.mark.parametrize(("text", "size"), BATCHES)
def test_a_batch_is_equal_blocks_at_equal_distances(text: str, size: Size) -> None:
    plan = Plan.parse(f"{text} > vendor")
    (level,) = plan.levels
    recipe = lower_level(plan, *size)
    assert recipe is not None
    assert isinstance(level, SchemeLevel)
    (batch,) = [step for step in recipe.steps if isinstance(step, ProductBatch)]
    assert tuple(recipe.products) == batch.products
    assert len(batch.products) == level.products
    sides = [block_side(x, parts, level.padded_side_multiple) for x, parts in zip(size, level.block_grid, strict=True)]
    assert {p.size for p in batch.products} == {tuple(sides)}
    assert len(batch.operand_places) == 3
    for places in batch.operand_places:
        assert len({place.name for place in places}) == 1
        assert [place.row for place in places] == [i * places[0].rows for i in range(len(places))]


@given(st.sampled_from(["strassen", "hk233", "laderman", "li-fig3", "hasa"]), *[st.integers(1, 60)] * 3)
def test_peeled_strips_are_computed_once(name: str, m: int, k: int, n: int) -> None:
    """The strips cost what they cost classically: all of the product but the core."""
    plan = Plan.parse(f"{name}.peel > vendor")
    (level,) = plan.levels
    assert isinstance(level, SchemeLevel)
    parts = level.block_grid
    core = [side - side % part for side, part in zip((m, k, n), parts, strict=True)]
    inside = level.products * prod(side // part for side, part in zip(core, parts, strict=True))
    if 0 in core:
        inside = prod(core)
    assert leaf_flops(plan, m, k, n) == 2 * (inside + m * k * n - prod(core))


@given(st.sampled_from(["strassen", "winograd", "hk223"]), *[st.integers(1, 40)] * 3)
def test_unequal_blocks_never_multiply_more_than_padded_ones(name: str, m: int, k: int, n: int) -> None:
    assert leaf_flops(Plan.parse(f"{name} > vendor"), m, k, n) <= leaf_flops(
        Plan.parse(f"{name}.pad > vendor"), m, k, n
    )


@given(st.sampled_from([1.5, 2, 3]), *[st.integers(1, 500)] * 3)
def test_balanced_leaves_are_the_whole_and_almost_square(gamma: float, m: int, k: int, n: int) -> None:
    leaves = count_leaf_products(Plan.parse(f"balanced({gamma}) > vendor"), m, k, n)
    assert sum(prod(size) * times for size, times in leaves.items()) == m * k * n
    for size in leaves:
        _, low, high = sorted(size)
        assert high < gamma * low or high == 1


def test_balanced_adds_up_an_inner_split() -> None:
    recipe = lower_level(Plan.parse("balanced > vendor"), 4, 9, 4)
    assert recipe is not None
    first, second = recipe.products
    assert (first.left, first.right) == (Place("A", 0, 0, 4, 5), Place("B", 0, 0, 5, 4))
    assert (second.left, second.right) == (Place("A", 0, 5, 4, 4), Place("B", 5, 0, 4, 4))
    assert first.dest == second.dest == whole_matrix("C", 4, 4)
    assert (first.reads_dest, second.reads_dest) == (False, True)
