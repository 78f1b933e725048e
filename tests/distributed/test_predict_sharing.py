"""Predicted times of shared products, compared with values computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fmm.distributed import predict_sharing
from fmm.distributed.layout import K_AXIS, M_AXIS, N_AXIS, MeshLayout
from fmm.distributed.predict_sharing import (
    MeshDevices,
    choose_sharing,
    level_operation_counts,
    predict_layout,
    rank_sharings,
)
from fmm.distributed.quadrants import outer_level_blocks, parse_outer_level
from fmm.hardware.links import Link, Network, default_network, link_by_name
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError

FLOPS = 1e12
FAST, SLOW = Link("fast", "inside", "", 100.0, 0.0, "made up"), Link("slow", "between", "", 10.0, 0.0, "made up")
WINOGRAD = Plan.parse("winograd > vendor")


def cubic(m: int, k: int, n: int) -> float:
    return 2.0 * m * k * n / FLOPS


def devices(inside: Link = FAST, together: int = 8, stream: float = 1e15) -> MeshDevices:
    return MeshDevices(cubic, stream, Network(inside, SLOW, together), 4)


def rows_of_four(n: int, pieces: int = 1, along: int = K_AXIS) -> MeshLayout:
    return MeshLayout(n, n, n, (4,), (0,), (0,), (M_AXIS,), pieces, along)


def test_one_piece_waits_for_all_of_b() -> None:
    n = 8192
    found = predict_layout(rows_of_four(n), VENDOR, devices())
    assert found.waiting == pytest.approx(0.75 * n * n * 4 / 100e9)
    assert found.products == pytest.approx(2 * n**3 / FLOPS / 4)
    assert found.received == 0.75 * n * n * 4


def test_panels_arrive_beside_products() -> None:
    """Each process begins with its own rows of B, so nothing waits while products take longer than messages."""
    n = 8192
    assert predict_layout(rows_of_four(n, 4), VENDOR, devices()).waiting == pytest.approx(0)
    slow = replace(devices(SLOW, stream=1e30), product_seconds=lambda m, k, n: 0.0)
    assert predict_layout(rows_of_four(n, 4), VENDOR, slow).waiting == pytest.approx(0.75 * n * n * 4 / 10e9)


def test_pieces_of_columns_wait_for_the_first_one_alone() -> None:
    n = 8192
    found = predict_layout(rows_of_four(n, 4, N_AXIS), VENDOR, devices())
    assert found.waiting == pytest.approx(0.75 * n * n * 4 / 100e9 / 4)
    assert found.sums == 0.0


@pytest.mark.parametrize(
    ("pieces", "along", "fourths"),
    [(1, K_AXIS, 4), (4, K_AXIS, 2), (4, N_AXIS, 2), (8, N_AXIS, 1), (2, K_AXIS, 4), (2, M_AXIS, 4)],
)
def test_panels_of_two_steps_are_there_at_a_time(pieces: int, along: int, fourths: float) -> None:
    """Panel memory in fourths of B. Pieces of rows of C need all of B in each step. Of two pieces of the inner
    dimension none is local, and the second arrives beside the first."""
    n = 1024
    found = predict_layout(rows_of_four(n, pieces, along), VENDOR, devices())
    assert found.memory == fourths * n * n


def test_between_machines_messages_take_the_other_link() -> None:
    """Two machines of two: each device receives one fourth of B from inside, and two from the other machine."""
    n = 8192
    found = predict_layout(rows_of_four(n), VENDOR, devices(together=2))
    assert found.waiting == pytest.approx(0.5 * n * n * 4 / 10e9)


def test_parts_of_c_are_added_up() -> None:
    n = 4096
    layout = MeshLayout(n, n, n, (4,), (1,), (0,), (K_AXIS,))
    found = predict_layout(layout, VENDOR, devices())
    assert found.waiting == 0.0 and found.around == pytest.approx(0.75 * n * n * 4 / 100e9, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "products", "additions"),
    [("winograd", 7, (4, 4, 7)), ("strassen", 7, (5, 5, 8)), ("strassen^2", 49, None)],
)
def test_what_levels_above_count(text: str, products: int, additions: tuple[int, int, int] | None) -> None:
    """Winograd's variant needs 15 additions of quarter matrices, Strassen's algorithm 18."""
    count, times = level_operation_counts(parse_outer_level(text))
    assert count == products
    if additions is not None:
        assert [round(4 * each, 9) for each in times] == list(additions)


def test_a_level_above_pays_where_products_take_longest() -> None:
    """Seven products for eight, if the devices' own products gain nothing from being whole; and never where all waits
    for the network."""
    layout = rows_of_four(32768)
    fast = rank_sharings(layout, devices(replace_speed(FAST, 1e5)))
    assert fast[0].outer_plan == WINOGRAD and fast[0].products == pytest.approx(7 / 8 * cubic(32768, 32768, 8192))
    slow = rank_sharings(layout, devices(replace_speed(FAST, 0.1)))
    assert slow[0].outer_plan == VENDOR


def test_a_level_above_must_win_clearly() -> None:
    """A sharing that does not fit is chosen only if none fits."""
    n = 4096
    plain = replace(predict_layout(rows_of_four(n), VENDOR, devices()), products=1.0, waiting=0.0)
    level = replace(plain, outer_plan=WINOGRAD, memory=10.0)
    for share, wins in (
        (0.99, False),
        (1.001 - predict_sharing.LEVEL_MARGIN, False),
        (0.999 - predict_sharing.LEVEL_MARGIN, True),
    ):
        ways = replace(level, products=share), plain
        assert (choose_sharing(ways, 1e12).outer_plan == WINOGRAD) == wins
    assert choose_sharing((replace(level, products=0.99), plain), 10.0).outer_plan == WINOGRAD  # alone fits
    assert choose_sharing((level, plain), 1.0).memory == 10.0


@pytest.mark.slow
def test_a_rectangle_of_a_row_needs_less_of_b_and_gives_back_blocks() -> None:
    """Each of 16 processes receives 3/16 of A, 1/4 of 15/16 of B, and at the end 3/4 of its part of C."""
    n = 8192
    whole = n * n * 4
    row = MeshLayout(n, n, n, (16,), (0,), (0,), (M_AXIS,))
    ways = rank_sharings(row, devices(together=16))
    found = next(way for way in ways if way.rectangle and way.layout.pieces == 1)
    assert found.layout.mesh == (4, 4)
    assert found.received == pytest.approx((3 / 16 + 15 / 64 + 3 / 64) * whole)
    assert found.waiting == pytest.approx((3 / 16 + 15 / 64) * whole / 100e9)
    assert found.around == pytest.approx(3 / 64 * whole / 100e9, rel=1e-3)
    assert str(found).endswith("by 4, as a rectangle, in one piece")


@pytest.mark.parametrize(
    ("sizes", "mesh", "cuts"),
    [
        ((64, 64, 64), (2, 2), (0, 0)),  # no row
        ((64, 64, 64), (5,), (0,)),  # no rectangle
        ((66, 64, 66), (4,), (0,)),  # parts of C of two sizes
        ((64, 66, 64), (4,), (1,)),  # parts of A
    ],
)
def test_what_is_no_rectangle(sizes: tuple[int, int, int], mesh: tuple[int, ...], cuts: tuple[int, ...]) -> None:
    assert not list(
        predict_sharing.two_dimensional_layouts(MeshLayout(*sizes, mesh, cuts, cuts, (M_AXIS,) * len(mesh)))
    )


@pytest.mark.slow
def test_a_rectangle_is_taken_where_it_clearly_wins() -> None:
    """Where messages are all that takes time, 16 devices in a row take more than twice as long. Of four neither way
    sends less; and pieces beside which products take longer hide most of it."""
    sent = replace(devices(stream=1e30), product_seconds=lambda m, k, n: 0.0)
    for ranks, wins in ((16, True), (4, False)):
        row = MeshLayout(32768, 32768, 32768, (ranks,), (0,), (0,), (M_AXIS,))
        assert choose_sharing(rank_sharings(row, sent), 1e12).rectangle == wins
    busy = rank_sharings(MeshLayout(32768, 32768, 32768, (16,), (0,), (0,), (M_AXIS,)), devices())
    assert not choose_sharing(busy, 1e12).rectangle


def replace_speed(original: Link, gigabytes: float) -> Link:
    return replace(original, gigabytes=gigabytes)


def test_small_products_are_compared_in_one_piece_alone() -> None:
    found = rank_sharings(rows_of_four(64), devices())
    assert found[0].predicted_seconds < predict_sharing.MIN_SECONDS_TO_COMPARE and {
        way.layout.pieces for way in found
    } == {1}


def test_what_no_level_above_can_do() -> None:
    for text in ("3m", "gram", "strassen.fused > tile", "no-such-scheme"):
        with pytest.raises(PlanError):
            parse_outer_level(text)
    uneven = MeshLayout(64, 9, 64, (2, 4), (0, 1), (0, 1), (M_AXIS, N_AXIS))  # 4 parts of 3 and 2 parts of 5
    with pytest.raises(PlanError, match="do not match"):
        outer_level_blocks(uneven, WINOGRAD)
    others = rank_sharings(uneven, devices(), (WINOGRAD,))  # shared in other ways, it can
    assert others and all(way.layout.work != (M_AXIS, N_AXIS) for way in others)


def test_blocks_are_held_alike() -> None:
    """Rows by three, 10 of them, and the inner dimension in three parts: every process has the same part of each
    block, padded to an even number."""
    found = outer_level_blocks(MeshLayout(10, 7, 8, (3,), (0,), (0,), (M_AXIS,)), WINOGRAD)
    assert (found.rows, found.cols, found.width) == (4, 8, 4)
    block = found.block_layout
    assert (block.m, block.k, block.n) == (6, 6, 4)
    assert [block.process_share(rank).rows.size for rank in range(3)] == [2, 2, 2]
    assert [group.size for group in found.held_inner_ranges("A", 0)] == [3, 3, 1]
    assert [[group.size for group in found.held_inner_ranges("B", rank)] for rank in range(3)] == [[3], [3], [1]]


def test_links_by_name() -> None:
    assert link_by_name("nvlink-4") is link_by_name("NVLink 4") and link_by_name("InfiniBand NDR").kind == "between"
    assert default_network("9.0", 4).inside is link_by_name("NVLink 4") and default_network(
        "cpu", 2
    ).inside is link_by_name("host memory")
    assert default_network("12.0", 1).inside is link_by_name("PCIe 4")
    for blackwell in ("10.0", "10.3"):
        assert str(default_network(blackwell, 8)) == "NVLink 5 among 8, InfiniBand XDR beyond"
    with pytest.raises(ValueError, match="the links are"):
        link_by_name("string")
