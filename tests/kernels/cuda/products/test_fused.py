"""Fused levels: the variants of Huang, Yu and van de Geijn, and the three schemes of section 3.3, as tables and
launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from fmm import problem as shapes
from fmm.kernels.algorithms.catalogue import scheme, scheme_names
from fmm.kernels.cuda.launch_list import StreamSync
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products.kernel_sizes import FUSED_SIZES
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp, tile_op
from fmm.kernels.cuda.record import OperationList, RecordedOp, record_operations
from fmm.kernels.cuda.sums.sum_launch import SumOp
from fmm.kernels.plans import explain
from fmm.kernels.plans.fused_order import (
    FIGURE_6_VARIANTS,
    MAX_STREAMS,
    OperandBlocks,
    count_launches,
    count_touched_blocks,
    fused_variant_name,
    fused_variants_text,
    launch_stages,
)
from fmm.kernels.plans.levels.scheme_level import SchemeLevel
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.cost import cost
from fmm.perfmodel.papers.huang import huang_fig7
from fmm.perfmodel.work import counted_work
from fmm.problem import Layout, Problem
from tests.support.launch_lists import buffer, in_stream_order, matrices, play

OPTIONS = ((), ("streams",), ("atomic",), ("variants",), ("streams", "variants"), ("atomic", "variants"))
ONE = tuple(".".join(("strassen-huang.fused", *options)) for options in OPTIONS)


def recorded(text: str, size: int = 512, beta: float = 0) -> OperationList:
    """Return the plan of this text, with the leaf `tile` if it names none."""
    plan = Plan.parse(text if " > tile" in text else f"{text} > tile")
    return record_operations(plan, Problem(size, size, size, "float32", beta=beta))


def products(tape: OperationList) -> Iterator[TileOp]:
    for op in tape.ops:
        yield from op.ops if isinstance(op, TileGroup) else [op] if isinstance(op, TileOp) else []


# ---- variants


@pytest.mark.parametrize(("text", "level"), [("strassen-huang.fused", 1), ("strassen-huang^2.fused", 2)])
def test_launches_are_those_of_figure_6(text: str, level: int) -> None:
    """One kernel for each variant, with the number of products in the figure."""
    printed = {w: count for at, _, w, count in FIGURE_6_VARIANTS if at == level}
    found = Counter(op.kernel for op in products(recorded(text)))
    assert {kernel.block_counts: count for kernel, count in found.items()} == printed
    assert len(found) == len(printed) == (4, 10)[level - 1]


NAMES: list[tuple[OperandBlocks, str]] = [
    ((1, 1, 1), "GEMM"), ((2, 2, 2), "Var#0"), ((2, 1, 2), "Var#3"), ((4, 4, 4), "Var#0"), ((4, 2, 2), "Var#9"),
    ((3, 3, 3), "W(3,3,3)"),
]  # fmt: skip


@pytest.mark.parametrize(("w", "expected"), NAMES)
def test_variants_have_the_papers_names(w: OperandBlocks, expected: str) -> None:
    assert fused_variant_name(w) == expected


def test_explain_names_the_variants_and_how_they_start() -> None:
    said = explain.plan_table(Plan.parse("strassen-huang.fused.streams > tile"), 64, 64, 64, 4)
    assert "7 launches on 2 streams in 3 stages (Var#0, 2 Var#3, 2 Var#2, 2 Var#1)" in said
    said = explain.plan_table(Plan.parse("strassen > strassen.fused.variants > tile"), 64, 64, 64, 4)
    assert "strassen.fused.variants: 4 launches one after the other (Var#0, 2 Var#3" in said
    said = explain.plan_table(Plan.parse("strassen^2.fused > tile"), 64, 64, 64, 4)
    assert "strassen^2.fused: 49 products one after the other (Var#0, 4 Var#4" in said
    assert fused_variants_text(count_touched_blocks(scheme("winograd"), p) for p in range(7)).count("Var#0") == 1


# ---- which products are one launch, and which run side by side


def test_figure_7() -> None:
    """The products of equation (3): stages, with two streams in each stage."""
    found = launch_stages(scheme("strassen-huang"), ("streams",))
    assert found == (
        (((1,), (5,)), ((4,), (6,))),  # M1, M5 beside M4, M6
        (((2,),), ((3,),)),  # M2 beside M3
        (((0,),),),  # M0
    )
    assert not any(huang_fig7().column_cells("difference"))


SHAPES = [
    # (scheme, options, launches of every stream of every stage)
    ("strassen-huang", (), [[7]]),
    ("strassen-huang", ("atomic",), [[1] * 7]),
    ("strassen-huang", ("variants",), [[4]]),
    ("strassen-huang", ("atomic", "variants"), [[1] * 4]),
    ("strassen-huang^2", (), [[49]]),
    ("strassen-huang^2", ("streams",), [[14, 14], [7, 7], [2, 2], [1, 1], [1]]),
    ("strassen-huang^2", ("atomic",), [[7] * 7]),
    ("strassen-huang^2", ("variants",), [[16]]),
    ("strassen-huang^2", ("atomic", "variants"), [[2, 2, 2, 1, 1, 1, 1]]),
    ("winograd", ("streams",), [[2, 1], [2, 1], [1]]),
]


@pytest.mark.parametrize(("text", "options", "shape"), SHAPES)
def test_stages_and_streams(text: str, options: tuple[str, ...], shape: list[list[int]]) -> None:
    assert [[len(lane) for lane in stage] for stage in launch_stages(scheme(text), options)] == shape
    assert count_launches(scheme(text), options) == sum(map(sum, shape))


@pytest.mark.quick_cases()
@pytest.mark.parametrize("text", [*scheme_names(), "strassen^2", "winograd*hk223"])
@pytest.mark.parametrize("options", OPTIONS, ids=".".join)
def test_concurrent_products_write_different_blocks(text: str, options: tuple[str, ...]) -> None:
    """Every product runs once; the products of a launch are of one variant."""
    found = scheme(text)

    def written(task: tuple[int, ...]) -> list[int]:
        return [i for p in task for i, row in enumerate(found.w) if row[p]]

    seen: list[int] = []
    for stage in launch_stages(found, options):
        seen += [p for lane in stage for task in lane for p in task]
        assert len(stage) <= (MAX_STREAMS if "atomic" in options else 2)
        for task in (task for lane in stage for task in lane):
            assert len({count_touched_blocks(found, p) for p in task}) == 1
            assert "atomic" in options or len(written(task)) == len(set(written(task)))
        blocks = [{i for task in lane for i in written(task)} for lane in stage]
        assert "atomic" in options or len(set().union(*blocks)) == sum(map(len, blocks))
    assert sorted(seen) == list(range(found.rank))


# ---- tapes


LAUNCHES = [
    # (plan, beta, kinds of launches, streams)
    ("strassen.fused", 0, {TileGroup: 1}, 1),  # in turns: one launch where the device's kernel can
    ("strassen.fused > tile.half", 0, {TileOp: 7}, 1),
    ("strassen.fused.streams", 2, {TileOp: 7, StreamSync: 4}, 2),
    ("strassen.fused.atomic", 0, {SumOp: 1, TileOp: 7, StreamSync: 2}, 7),
    ("strassen.fused.atomic", 1, {TileOp: 7, StreamSync: 2}, 7),
    ("strassen.fused.variants", 2, {TileOp: 1, TileGroup: 3}, 1),
    ("strassen.fused.atomic.variants", 2, {SumOp: 1, TileOp: 1, TileGroup: 3, StreamSync: 2}, 4),
    ("strassen^2.fused", 0, {TileGroup: 1}, 1),
    ("strassen^2.fused.atomic.variants", 1, {TileOp: 1, TileGroup: 9, StreamSync: 2}, 7),
    ("strassen > strassen.fused", 0, {SumOp: 3, TileGroup: 7}, 1),
    ("strassen > strassen.fused > tile.half", 0, {SumOp: 3, TileOp: 49}, 1),
    ("strassen.batched.pad16 > strassen.fused.variants", 0, {SumOp: 3, TileOp: 7, TileGroup: 21}, 1),
    ("strassen.sequential > strassen.fused.streams", 0, {SumOp: 17, TileOp: 49, StreamSync: 28}, 2),
]


@pytest.mark.parametrize(("text", "beta", "kinds", "lanes"), LAUNCHES)
def test_launches(text: str, beta: float, kinds: dict[type, int], lanes: int) -> None:
    """Equal to the cost's counts, which count ordered products one by one; a fused level alone needs no workspace."""
    tape = recorded(text, 512, beta)
    assert Counter(map(type, tape.ops)) == kinds
    assert tape.stream_count == lanes
    several = [op for op in tape.ops if isinstance(op, TileGroup)]
    assert all(op.fits_one_launch == (op.order != "turns") for op in several)
    found = cost(tape.plan, 512, 512, 512, 4, beta=beta)
    turns = sum(len(op.ops) - 1 for op in several if not op.fits_one_launch)
    assert found.launches == sum(kinds.values()) - kinds.get(StreamSync, 0) + turns
    assert found.workspace == plan_workspace_bytes(tape.plan, 512, 512, 512, 4, 1, beta) == tape.workspace
    assert (tape.workspace == 0) == (len(tape.plan.levels) == 1)
    assert found.flops == 2 * 512**3 * 7**tape.plan.depth // 8**tape.plan.depth


@pytest.mark.parametrize("text", [*ONE, "strassen^2.fused.variants", "strassen > strassen.fused.atomic.variants"])
def test_terms_of_a_prediction(text: str) -> None:
    """Leaf products that start together; passes and traffic of sums, and of scaling C for atomic updates."""
    plan, side = Plan.parse(f"{text} > tile"), 1024
    work = counted_work(plan, shapes.Problem(side, side, side, "float32"))
    ((*_, count, together),) = work.leaves
    level = plan.levels[-1]
    assert isinstance(level, SchemeLevel) and level.scheme
    assert (count, together) == (7**plan.depth, level.products / count_launches(level.scheme, level.tasks))
    scaled = ("atomic" in level.tasks) * 7 ** (plan.depth - len(level.scheme.factors or "1"))
    assert work.passes == pytest.approx(scaled + 3 * (len(plan.levels) - 1))
    assert (work.traffic > 0) == (work.passes > 0)


def test_atomic_updates_move_c_once_more() -> None:
    inside, added, kept = (
        cost(Plan.parse(f"strassen.fused{x} > tile"), 64, 64, 64, 4, beta=beta)
        for x, beta in (("", 2), (".atomic", 2), (".atomic", 1))
    )
    assert (added.bytes_read, added.bytes_written) == (4 * 64 * 64, 4 * 64 * 64)
    assert (
        (kept.total_bytes, kept.launches)
        == (inside.total_bytes, inside.launches)
        == (added.total_bytes - 8 * 64 * 64, 7)
    )


@pytest.mark.parametrize("text", [*ONE, "strassen.fused > tile.half", "strassen.sequential > strassen.fused.streams"])
def test_a_launch_overlaps_only_the_previous_one_of_its_stream(text: str) -> None:
    """A launch may overlap a product of its own stage; the first after a wait or a sum overlaps nothing."""
    last: dict[int, RecordedOp] = {}
    for op, lane in zip(recorded(text).ops, recorded(text).streams, strict=True):
        if isinstance(op, TileOp | TileGroup):
            assert op.may_overlap == isinstance(last.get(lane), TileOp | TileGroup)
        last = {} if isinstance(op, StreamSync) else last | {lane: op}


def problems() -> Iterator[Problem]:
    for (m, k, n), orders, (alpha, beta) in zip(
        ((36, 21, 44), (33, 18, 37), (5, 1, 7), (16, 16, 16)),
        ("CCC", "FCF", "CCC", "CFC"),
        ((1.0, 0.0), (0.5, 2.0), (2.0, 1.0), (1.0, -1.0)),
        strict=True,
    ):
        shapes = (m, k), (k, n), (m, n)
        lines = [Layout(o, (s[1] if o == "C" else s[0]) + 3) for o, s in zip(orders, shapes, strict=True)]  # type: ignore[arg-type]
        yield Problem(m, k, n, "float32", (lines[0], lines[1], lines[2]), alpha, beta)


HYBRID = (
    "strassen > strassen.fused",
    "strassen.sequential > strassen.fused.streams",
    "strassen.batched.pad16 > strassen.fused.atomic.variants",
    "strassen.fused.streams.peel",
)
TWO = ("strassen^2.fused", "strassen-huang^2.fused.streams", "winograd^2.fused.atomic.variants", "hk223.fused.variants")


@pytest.mark.parametrize("text", [*ONE, *TWO, *HYBRID])
def test_streams_may_run_in_any_order(text: str) -> None:
    """Exact on small integers in any order of the streams; with beta = 0 nothing of C is read, which is NaN."""
    for problem, turn in product(problems(), (1, -1)):
        tape = record_operations(Plan.parse(f"{text} > tile"), problem)
        memory, (a, b, c) = matrices(problem, np.random.default_rng(7))
        memory["W"], before = buffer(tape.workspace), c.astype(np.float64)
        order = tuple(range(tape.stream_count))[::turn]
        ops = [
            tile_op(op, "float32", FUSED_SIZES["float32"]) if isinstance(op, GemmOp) else op
            for op in in_stream_order(tape, order)
        ]
        assert len(ops) == len(tape.ops)
        play(replace(tape, ops=tuple(ops)), memory)
        old: Any = problem.beta * before if problem.beta else 0
        np.testing.assert_array_equal(c, problem.alpha * (a.astype(np.float64) @ b) + old, err_msg=str(problem))


def test_figure_7s_stages_wait_for_each_other() -> None:
    """No order of the two streams within a stage changes a bit; blocks of C are first written, then added to."""
    tape = recorded("strassen-huang.fused.streams", 32)
    names: dict[object, str] = {StreamSync.FORK: "F", StreamSync.JOIN: "J"}
    kinds = [names.get(op, str(lane)) for op, lane in zip(tape.ops, tape.streams, strict=True)]
    assert "".join(kinds) == "F0101JF01J0"
    for order in permutations((0, 1)):
        begun: set[int] = set()
        for op in in_stream_order(tape, order):
            for piece in op.dest if isinstance(op, TileOp) else ():
                assert piece.keep == (piece.offset in begun)
                begun.add(piece.offset)
        assert len(begun) == 4
