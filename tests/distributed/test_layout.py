"""Layouts of shared products, simulated in one process with exact integers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from fmm.distributed.layout import (
    K_AXIS,
    M_AXIS,
    N_AXIS,
    BlocksHeld,
    CutAxes,
    MeshLayout,
    OperandName,
    Rectangle,
    RectangleTransfer,
    Span,
    mesh_coordinates,
)

MESHES: list[tuple[int, ...]] = [(1,), (2,), (3,), (4,), (2, 2), (2, 3), (2, 1, 2)]
SIZES = [(12, 12, 12), (7, 5, 9), (1, 13, 2), (3, 1, 8)]


def taken(matrix: np.ndarray, box: Rectangle) -> np.ndarray:
    return matrix[box.rows.start : box.rows.stop, box.cols.start : box.cols.stop]


def all_transfers(layout: MeshLayout, step: int) -> list[RectangleTransfer]:
    """Return the transfers of all processes, by receiver."""
    ranks = range(layout.process_count)
    return [t for rank in ranks for t in layout.transfers_of_rank(rank)[step] if t.dest == rank]


def played(layout: MeshLayout, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product as the processes compute it, each from its own and its received blocks alone."""
    c = np.zeros((layout.m, layout.n), dtype=a.dtype)
    whole: dict[OperandName, np.ndarray] = {"A": a, "B": b}
    had: dict[OperandName, np.ndarray] = {}
    for rank, step in product(range(layout.process_count), range(layout.pieces)):
        for operand, box in layout.panels_needed(rank, step).items():
            if step and layout.reuses_panel_in_all_steps(operand):
                continue
            had[operand] = np.full((box.rows.size, box.cols.size), 10**6, dtype=a.dtype)  # what nobody writes shows
            arrived = [t.box for t in layout.transfers_of_rank(rank)[step] if (t.dest, t.operand) == (rank, operand)]
            for part in (*arrived, layout.blocks_held[operand].block_of_rank(rank).intersection(box)):
                taken(had[operand], part.relative_to(box))[:] = taken(whole[operand], part)
        rows, _, cols = layout.process_share_in_step(rank, step)
        taken(c, Rectangle(rows, cols))[:] += had["A"] @ had["B"]
    return c


def some_layouts(mesh: tuple[int, ...], size: tuple[int, int, int], pieces: int, count: int = 12) -> list[MeshLayout]:
    """Return a random sample of layouts."""
    draw = random.Random(f"{mesh} {size} {pieces}")

    def cuts(*among: int | None) -> CutAxes:
        return tuple(draw.choice(among) for _ in mesh)

    return [
        MeshLayout(
            *size,
            mesh,
            cuts(0, 1, None),
            cuts(0, 1, None),
            cuts(M_AXIS, K_AXIS, N_AXIS),
            pieces,
            draw.choice((M_AXIS, K_AXIS, N_AXIS)),
        )
        for _ in range(count)
    ]


@pytest.mark.quick_cases()
@pytest.mark.parametrize("pieces", [1, 2, 5])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_layouts_multiply(mesh: tuple[int, ...], pieces: int, rng: np.random.Generator) -> None:
    for size in SIZES:
        m, k, n = size
        a, b = rng.integers(-9, 10, (m, k)), rng.integers(-9, 10, (k, n))
        for layout in some_layouts(mesh, size, pieces):
            assert (played(layout, a, b) == a @ b).all(), layout


def test_who_sends_holds_what_he_sends() -> None:
    for layout in some_layouts((2, 3), (11, 7, 5), 3, 40):
        for transfer in (t for step in range(layout.pieces) for t in all_transfers(layout, step)):
            box = layout.blocks_held[transfer.operand].block_of_rank(transfer.source)
            assert transfer.box.intersection(box) == transfer.box and transfer.box.size > 0
            assert transfer.source != transfer.dest


@pytest.mark.parametrize("pieces", [1, 2, 5])
@pytest.mark.parametrize("mesh", [*MESHES, (8,), (2, 4), (3, 3)], ids=str)
def test_entries_that_are_counted_are_those_of_the_transfers(mesh: tuple[int, ...], pieces: int) -> None:
    for size in (*SIZES, (0, 3, 2), (40, 60, 7)):
        for layout in some_layouts(mesh, size, pieces):
            for step in range(layout.pieces):
                wanted = np.zeros((layout.process_count, layout.process_count), int)
                for transfer in all_transfers(layout, step):
                    wanted[transfer.source, transfer.dest] += transfer.box.size
                np.testing.assert_array_equal(layout.entries_sent_in_step(step), wanted, str(layout))


@pytest.mark.parametrize("pieces", [1, 2, 5])
@pytest.mark.parametrize("mesh", [*MESHES, (8,), (2, 4), (3, 3)], ids=str)
def test_two_processes_list_the_transfers_between_them_in_the_same_order(mesh: tuple[int, ...], pieces: int) -> None:
    for size in SIZES:
        for layout in some_layouts(mesh, size, pieces, 4):
            for step, source, dest in product(range(pieces), *2 * [range(layout.process_count)]):
                between = [
                    [t for t in layout.transfers_of_rank(rank)[step] if (t.source, t.dest) == (source, dest)]
                    for rank in (source, dest)
                ]
                assert between[0] == between[1], layout


def test_a_process_of_a_large_mesh_lists_its_own_transfers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """All transfers of a mesh of 64 x 64 take more than ten seconds, in each of its processes."""
    found = Counter[int]()
    find = BlocksHeld.find_source_ranks

    def counted(held: BlocksHeld, rank: int, wanted: Rectangle) -> Iterator[tuple[int, Rectangle]]:
        found[rank] += 1
        return find(held, rank, wanted)

    monkeypatch.setattr(BlocksHeld, "find_source_ranks", counted)
    layout = MeshLayout(8192, 8192, 8192, (64, 64), (0, 1), (0, 1), (M_AXIS, N_AXIS))
    (transfers,) = layout.transfers_of_rank(64 * 5 + 7)
    assert len(transfers) == 4 * 63 and found.total() == 2 * 64


def test_rows_of_b_go_around() -> None:
    """Rows of A and B on four processes: each begins with its own part, then sends and receives one part a step."""
    layout = MeshLayout(64, 64, 64, (4,), (0,), (0,), (M_AXIS,), 4)
    assert all_transfers(layout, 0) == []
    for step in (all_transfers(layout, step) for step in range(1, 4)):
        assert sorted(t.source for t in step) == sorted(t.dest for t in step) == [0, 1, 2, 3]
        assert all(t.box.size == 16 * 64 for t in step)


def test_two_dimensions_send_and_receive_evenly() -> None:
    """As in Cannon's algorithm, no process sends to two others at a time."""
    layout = MeshLayout(64, 64, 64, (4, 4), (0, 1), (0, 1), (M_AXIS, N_AXIS), 4)
    for step in (all_transfers(layout, step) for step in range(4)):
        for operand in ("A", "B"):
            sources = [t.source for t in step if t.operand == operand]
            assert len(sources) == len(set(sources)) == 12


def test_each_process_receives_what_it_lacks_and_no_more() -> None:
    layout = MeshLayout(60, 60, 60, (2, 3), (0, 1), (0, 1), (M_AXIS, N_AXIS), 6)
    for rank in range(6):
        received = sum(t.box.size for step in layout.transfers_of_rank(rank) for t in step if t.dest == rank)
        assert received == 30 * 60 - 30 * 20 + 60 * 20 - 30 * 20


def test_parts_are_torchs_chunks() -> None:
    assert [Span(0, 10).equal_part_of_span(4, i) for i in range(4)] == [Span(0, 3), Span(3, 6), Span(6, 9), Span(9, 10)]
    assert [Span(2, 5).equal_part_of_span(4, i).size for i in range(4)] == [1, 1, 1, 0]
    assert [mesh_coordinates(rank, (2, 3)) for rank in (0, 2, 3, 5)] == [(0, 0), (0, 2), (1, 0), (1, 2)]
    nested = [BlocksHeld((10, 4), (2, 2), (0, 0)).block_of_rank(rank).rows for rank in range(4)]
    assert nested == [Span(0, 3), Span(3, 5), Span(5, 8), Span(8, 10)]
