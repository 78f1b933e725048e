"""The order of a fused level: which products are one launch, which launches run side by side, which kernels it takes.

Huang, Yu, van de Geijn 2020, section 3.3: products in any order, as long as no two write a block at the same time. What
a product writes follows from the scheme's W; nothing here knows any scheme.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from fmm.kernels.algorithms.scheme import Scheme

TASKS = ("streams", "atomic", "variants")  # what a plan may say of a fused level
LANES = 7  # streams, for one level's products
Task = tuple[int, ...]  # products in one launch
Lane = tuple[Task, ...]  # launches one after the other
Stage = tuple[Lane, ...]  # lanes side by side, which all end before the next stage begins
Blocks = frozenset[int]  # of C


@lru_cache(maxsize=256)
def launch_stages(scheme: Scheme, options: tuple[str, ...] = ()) -> tuple[Stage, ...]:
    """A fused level's launches: all in order, or on two `streams`, or, where they write atomically, on many."""
    tasks = variant_tasks(scheme, "atomic" in options) if "variants" in options else [(p,) for p in range(scheme.rank)]
    if "streams" in options:
        return tuple(_two_streams(tasks, [_written(scheme, task) for task in tasks]))
    if "atomic" in options:
        return (tuple(tuple(tasks[lane::LANES]) for lane in range(min(LANES, len(tasks)))),)
    return ((tuple(tasks),),)


def launches_needed(scheme: Scheme, options: tuple[str, ...] = ()) -> int:
    return sum(len(lane) for stage in launch_stages(scheme, options) for lane in stage)


def lanes_needed(scheme: Scheme, options: tuple[str, ...] = ()) -> int:
    return max(len(stage) for stage in launch_stages(scheme, options))


def variant_tasks(scheme: Scheme, atomic: bool) -> list[Task]:
    """Products of a variant as one launch; if they are not added atomically, only such as write blocks of their own."""
    groups: list[list[int]] = []
    for p in range(scheme.rank):
        for group in groups:
            alike = blocks_touched(scheme, group[0]) == blocks_touched(scheme, p)
            if alike and (atomic or not _written(scheme, group) & _written(scheme, [p])):
                group.append(p)
                break
        else:
            groups.append([p])
    return [tuple(group) for group in groups]


def _written(scheme: Scheme, task: Sequence[int]) -> Blocks:
    return frozenset(i for i, row in enumerate(scheme.w) if any(row[p] for p in task))


def _two_streams(tasks: Sequence[Task], written: Sequence[Blocks]) -> Iterator[Stage]:
    """Figure 7: a stage begins with two tasks that share no block; others join the lane that they share blocks with."""
    left = list(range(len(tasks)))
    while pair := next(((i, j) for i in left for j in left if i < j and not written[i] & written[j]), None):
        lanes, blocks = [[pair[0]], [pair[1]]], [written[pair[0]], written[pair[1]]]
        left = [i for i in left if i not in pair]
        while found := next(((i, x) for i in left for x in (0, 1) if _fits(lanes, blocks, x, written[i])), None):
            task, lane = found
            left.remove(task)
            lanes[lane].append(task)
            blocks[lane] |= written[task]
        yield tuple(tuple(tasks[i] for i in lane) for lane in lanes)
    if left:
        yield (tuple(tasks[i] for i in left),)


def _fits(lanes: Sequence[Sequence[int]], blocks: Sequence[Blocks], lane: int, written: Blocks) -> bool:
    """Is the lane not the longer one, and does the other write nothing of this?"""
    return len(lanes[lane]) <= len(lanes[1 - lane]) and not written & blocks[1 - lane]


# ---- variants: products that touch equally many blocks of A, B and C; one compiled kernel each

Operands = tuple[int, int, int]  # W_A, W_B, W_C: blocks of A, B and C that a product touches

# Huang, Yu, van de Geijn 2020, Figure 6: level, variant, (W_A, W_B, W_C), count.
FIGURE_6: Final[tuple[tuple[int, int, Operands, int], ...]] = (
    (0, 0, (1, 1, 1), 1),
    (1, 0, (2, 2, 2), 1),
    (1, 1, (2, 2, 1), 2),
    (1, 2, (1, 2, 2), 2),
    (1, 3, (2, 1, 2), 2),
    (2, 0, (4, 4, 4), 1),
    (2, 1, (1, 4, 4), 4),
    (2, 2, (2, 4, 4), 4),
    (2, 3, (4, 1, 4), 4),
    (2, 4, (4, 2, 4), 4),
    (2, 5, (4, 4, 1), 4),
    (2, 6, (4, 4, 2), 4),
    (2, 7, (2, 2, 4), 8),
    (2, 8, (2, 4, 2), 8),
    (2, 9, (4, 2, 2), 8),
)
_NAMES: Final = {w: f"Var#{number}" if level else "GEMM" for level, number, w, _ in FIGURE_6}


def blocks_touched(scheme: Scheme, product: int) -> Operands:
    """How many blocks of A, B and C a product touches."""
    a, b, c = (sum(bool(row[product]) for row in matrix) for matrix in (scheme.u, scheme.v, scheme.w))
    return a, b, c


def variant_name(w: Operands) -> str:
    """The variant as Figure 6 numbers it (its levels share no operand counts); others by their counts."""
    return _NAMES.get(w, "W({},{},{})".format(*w))


def variants_listed(found: Iterable[Operands]) -> str:
    """The variants among products, and how many are of each: `Var#0, 2 Var#3`."""
    counts = Counter(map(variant_name, found))
    return ", ".join(f"{count} {variant}" if count > 1 else variant for variant, count in counts.items())
