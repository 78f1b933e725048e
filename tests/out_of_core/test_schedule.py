"""Schedules: every entry of C is the complete sum, from loaded tiles, within the counted memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from fmm.dtypes import DTYPES
from fmm.out_of_core.choose_schedule import TilesDoNotFitError, candidate_schedules, choose_schedule
from fmm.out_of_core.schedule import (
    CopyRates,
    LoadStep,
    MultiplyStep,
    ProductCut,
    Schedule,
    StoreStep,
    StreamedTile,
    build_schedule,
    cut_ranges,
    padded_length,
)

SIZES = [(100, 200, 150), (257, 64, 129), (1, 1, 1), (33, 1000, 7), (64, 1, 640)]
CUTS = [
    ProductCut(1000, 1000, (1000,), (1000,)),  # all at once
    ProductCut(40, 60, (50,), (40,), (2, 2, 2)),
    ProductCut(40, 60, (7, 30), (16, 8), (1, 1, 1)),  # nowhere to load ahead
    ProductCut(100, 30, (16, 64), (50, 25), (9, 3, 2)),  # A stays
    ProductCut(40, 60, (1000,), (16, 8), (2, 2, 1)),  # an uncut inner dimension, in bands
]


def area(spot: tuple[int, int]) -> int:
    return spot[1] - spot[0]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("size", SIZES)
def test_every_entry_is_summed_once_and_brought_back_once(size: tuple[int, int, int], cut: ProductCut) -> None:
    m, k, n = size
    found = build_schedule(size, 4, cut)
    summed, stored = np.zeros((m, n), int), np.zeros((m, n), int)
    for step in found.steps:
        if isinstance(step, MultiplyStep):
            block = summed[slice(*step.rows), slice(*step.right.cols)]
            assert (block == 0).all() != step.adds
            assert step.left.cols == step.right.rows
            block += area(step.left.cols)
        elif isinstance(step, StoreStep):
            assert (summed[slice(*step.rows), slice(*step.cols)] == k).all()
            stored[slice(*step.rows), slice(*step.cols)] += 1
    assert (summed == k).all() and (stored == 1).all()
    assert found.bytes_stored == 4 * m * n


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("size", SIZES)
def test_steps_wait_for_all_that_they_need(size: tuple[int, int, int], cut: ProductCut) -> None:
    """Whoever begins each step as soon as what it waits for is done never finds a wrong tile, nor one that is still
    read: seen by who was in a slot, and who must have ended by then."""
    found = build_schedule(size, 4, cut)
    there: dict[tuple[str, int], StreamedTile] = {}
    loaded: dict[tuple[str, int], int] = {}
    block: dict[int, tuple[object, object]] = {}
    ended = [ended_before(found, number) for number in range(len(found.steps))]
    for number, step in enumerate(found.steps):
        if isinstance(step, LoadStep):
            readers = [
                i
                for i, other in enumerate(found.steps[:number])
                if isinstance(other, MultiplyStep) and other.slots["AB".index(step.tile.name)] == step.slot
            ]
            assert set(readers) <= ended[number]
            there[step.tile.name, step.slot], loaded[step.tile.name, step.slot] = step.tile, number
        elif isinstance(step, MultiplyStep):
            for name, tile, slot in zip("AB", (step.left, step.right), step.slots, strict=False):
                assert there[name, slot] == tile and loaded[name, slot] in ended[number]
            own = step.left.rows, step.right.cols
            if block.get(step.slots[2], own) != own:
                old = [
                    i
                    for i, x in enumerate(found.steps[:number])
                    if isinstance(x, StoreStep) and x.slot == step.slots[2]
                ]
                assert set(old) <= ended[number]
            block[step.slots[2]] = own
        else:
            makers = [
                i
                for i, x in enumerate(found.steps[:number])
                if isinstance(x, MultiplyStep) and x.slots[2] == step.slot and x.rows == step.rows
            ]
            assert makers[-1] in ended[number]


def ended_before(schedule: Schedule, number: int) -> set[int]:
    """Return the steps that have ended when this one starts: those that it waits for, and their predecessors."""
    step, ended = schedule.steps[number], set[int]()
    waiting = list(step.after)
    if own := [i for i in range(number) if type(schedule.steps[i]) is type(step)]:
        waiting.append(own[-1])
    while waiting:
        i = waiting.pop()
        if i not in ended:
            ended.add(i)
            waiting += schedule.steps[i].after
            waiting += [j for j in range(i - 1, -1, -1) if type(schedule.steps[j]) is type(schedule.steps[i])][:1]
    return ended


def test_what_is_needed_latest_goes_first() -> None:
    """With room for a row of A's tiles, A comes once; B's tiles come for each row of blocks, but the one that is there
    when the way turns."""
    size = 80, 80, 80
    few, all_of_a = (build_schedule(size, 4, ProductCut(40, 40, (20,), (40,), (of_a, 2, 1))) for of_a in (2, 4))
    whole = 4 * 80 * 80
    assert all_of_a.bytes_loaded < few.bytes_loaded <= 4 * whole
    loads = [step.tile for step in all_of_a.steps if isinstance(step, LoadStep) and step.tile.name == "A"]
    assert len(loads) == len(set(loads)) == 8


def test_memory_is_that_of_the_largest_tile_in_each_slot() -> None:
    found = build_schedule((100, 90, 50), 4, ProductCut(60, 50, (10, 80), (60,), (1, 2, 1)))
    of_a, of_b, of_c = 60 * 80 * 4, 80 * 52 * 4, 60 * 52 * 4  # lines of 50 are 52 long
    whole = [-(-x // 512) * 512 for x in (of_a, 10 * 52 * 4, of_b, of_c)]
    assert found.slot_bytes == {
        "A": (whole[0],),
        "B": (max(whole[1], 50 * 12 * 4 // 512 * 512 + 512), whole[2]),
        "C": (whole[3],),
    }
    assert found.total_slot_bytes == sum(sum(x) for x in found.slot_bytes.values())
    assert (padded_length(50, 4), padded_length(3, 16)) == (52, 3)


def test_times_are_those_of_the_lane_that_is_last() -> None:
    """Two-second loads, a five-second product, a four-second store; then two pieces and two bands."""
    rates = CopyRates(16.0, 4.0)
    whole = build_schedule((4, 8, 4), 1, ProductCut(4, 4, (8,), (4,), (1, 1, 1)))
    times = whole.predict_times(rates, lambda size: 5.0)
    assert (times.loading, times.computing, times.storing, times.seconds) == (4.0, 5.0, 4.0, 13.0)
    halves = build_schedule((4, 8, 4), 1, ProductCut(4, 4, (4,), (2,), (2, 2, 1)))
    found = halves.predict_times(rates, lambda size: 5.0 * size[0] * size[1] / 32)
    # Two seconds to load, 2.5 for the first piece, beside which the second comes; 1.25 for a band; two stores of two.
    assert (found.seconds, found.computing) == (2.0 + 2.5 + 1.25 + 2.0 + 2.0, 5.0)


def test_bands_of_an_uncut_inner_dimension_are_stored_beside_the_next_band() -> None:
    """Four seconds to load; four bands of a second, and a store of one second after each."""
    schedule = build_schedule((8, 8, 4), 1, ProductCut(4, 4, (8,), (1,), (2, 1, 1)))
    times = schedule.predict_times(CopyRates(16.0, 4.0), lambda size: float(size[0]))
    # The second block uses the slot of the first block: its first band waits for the four stores of the first block.
    assert (times.seconds, times.computing, times.storing) == (4.0 + 4.0 + 1.0 + 4.0 + 1.0, 8.0, 8.0)
    waits = [any(isinstance(schedule.steps[i], StoreStep) for i in step.after) for step in schedule.multiply_steps]
    assert waits == [False, False, False, False, True, False, False, False]


def seconds_by_work(workspace: int) -> object:
    return lambda size: 2 * size[0] * size[1] * size[2] / 50e12


@pytest.mark.quick_cases()
@pytest.mark.parametrize("room", [10**9, 300_000, 60_000, 30_000])
@pytest.mark.parametrize("dtype", ["float32", "complex128", "float16", "int64"])
@pytest.mark.parametrize("size", [*SIZES, (700, 800, 900)])
def test_what_is_chosen_fits(size: tuple[int, int, int], dtype: str, room: int) -> None:
    try:
        found, _ = choose_schedule(size, dtype, room, CopyRates(1e10, 1e10), seconds_by_work)  # type: ignore[arg-type]
    except TilesDoNotFitError:
        assert room <= 300_000 and max(size) >= 700
        return
    assert found.total_slot_bytes <= room
    pieces = cut_ranges(size[1], found.cut.pieces)
    if DTYPES[dtype].exact or dtype == "float16":
        others = [
            s for s in candidate_schedules(size, dtype, room) if len(cut_ranges(size[1], s.cut.pieces)) < len(pieces)
        ]
        assert not others


def test_the_first_piece_is_small_and_so_is_the_last_band() -> None:
    """If transfers take as long as products, pieces and bands save time at the beginning and the end."""
    size = 16384, 16384, 16384
    found, times = choose_schedule(size, "float32", 1 << 37, CopyRates(2e10, 2e10), seconds_by_work)  # type: ignore[arg-type]
    pieces, bands = (
        [last - first for first, last in cut_ranges(total, lengths)]
        for total, lengths in ((size[1], found.cut.pieces), (size[0], found.cut.bands))
    )
    assert pieces[0] < size[1] / 8 and bands[-1] <= size[0] / 4
    whole = build_schedule(size, 4, ProductCut(size[0], size[2], (size[1],), (size[0],), (1, 1, 1)))
    assert times.seconds < 0.65 * whole.predict_times(CopyRates(2e10, 2e10), seconds_by_work(0)).seconds  # type: ignore[arg-type]


@pytest.mark.parametrize(("total", "lengths"), [(10, (3,)), (10, (4, 3)), (1, (5, 5)), (7, (1, 2, 3))])
def test_spans_cover_everything_once(total: int, lengths: tuple[int, ...]) -> None:
    found = cut_ranges(total, lengths)
    assert found[0][0] == 0 and found[-1][1] == total
    assert all(x[1] == y[0] for x, y in pairwise(found)) and all(first < last for first, last in found)
