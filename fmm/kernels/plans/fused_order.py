"""Order of a fused level: which products share a launch, which launches run concurrently, which kernels they need.

Huang, Yu, van de Geijn 2020, section 3.3: products may run in any order, as long as no two write a block at the same
time. The blocks that a product writes follow from W of the scheme, so this module serves any scheme.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from fmm.kernels.algorithms.scheme import Scheme

FUSED_OPTIONS = ("streams", "atomic", "variants")  # options of a fused level in a plan
MAX_STREAMS = 7  # streams at most: one for each product of a level of seven
Task = tuple[int, ...]  # the products of one launch
StreamLaunches = tuple[Task, ...]  # launches that run one after the other
Stage = tuple[StreamLaunches, ...]  # concurrent streams, which all end before the next stage begins
Blocks = frozenset[int]  # indices of blocks of C


@lru_cache(maxsize=256)
def launch_stages(scheme: Scheme, options: tuple[str, ...] = ()) -> tuple[Stage, ...]:
    """Return the launches of a fused level: all in order, on two `streams`, or with `atomic` writes on many streams."""
    tasks = (
        group_by_variant(scheme, "atomic" in options) if "variants" in options else [(p,) for p in range(scheme.rank)]
    )
    if "streams" in options:
        return tuple(_two_stream_stages(tasks, [_blocks_written(scheme, task) for task in tasks]))
    if "atomic" in options:
        return (tuple(tuple(tasks[i::MAX_STREAMS]) for i in range(min(MAX_STREAMS, len(tasks)))),)
    return ((tuple(tasks),),)


def count_launches(scheme: Scheme, options: tuple[str, ...] = ()) -> int:
    """Return the number of kernel launches of a fused level."""
    return sum(len(tasks) for stage in launch_stages(scheme, options) for tasks in stage)


def count_streams(scheme: Scheme, options: tuple[str, ...] = ()) -> int:
    """Return the largest number of concurrent streams of a fused level."""
    return max(len(stage) for stage in launch_stages(scheme, options))


def group_by_variant(scheme: Scheme, atomic: bool) -> list[Task]:
    """Group the products of a variant into one launch. Without atomic updates, products of a launch share no block."""
    groups: list[list[int]] = []
    for p in range(scheme.rank):
        for group in groups:
            same_variant = count_touched_blocks(scheme, group[0]) == count_touched_blocks(scheme, p)
            if same_variant and (atomic or not _blocks_written(scheme, group) & _blocks_written(scheme, [p])):
                group.append(p)
                break
        else:
            groups.append([p])
    return [tuple(group) for group in groups]


def _blocks_written(scheme: Scheme, task: Sequence[int]) -> Blocks:
    return frozenset(i for i, row in enumerate(scheme.w) if any(row[p] for p in task))


def _two_stream_stages(tasks: Sequence[Task], written: Sequence[Blocks]) -> Iterator[Stage]:
    """Yield the stages of Figure 7.

    A stage begins with two tasks that share no block. Another task joins the stream with which it shares blocks, unless
    that stream is the longer one.
    """
    left = list(range(len(tasks)))
    while pair := next(((i, j) for i in left for j in left if i < j and not written[i] & written[j]), None):
        streams, blocks = [[pair[0]], [pair[1]]], [written[pair[0]], written[pair[1]]]
        left = [i for i in left if i not in pair]
        while found := next(
            (
                (i, x)
                for i in left
                for x in (0, 1)
                if len(streams[x]) <= len(streams[1 - x]) and not written[i] & blocks[1 - x]
            ),
            None,
        ):
            task, stream = found
            left.remove(task)
            streams[stream].append(task)
            blocks[stream] |= written[task]
        yield tuple(tuple(tasks[i] for i in stream_tasks) for stream_tasks in streams)
    if left:
        yield (tuple(tasks[i] for i in left),)


# ---- variants: products that touch equally many blocks of A, B and C share one compiled kernel

OperandBlocks = tuple[int, int, int]  # W_A, W_B, W_C: blocks of A, B and C that a product touches

# Huang, Yu, van de Geijn 2020, Figure 6: level, variant, (W_A, W_B, W_C), count.
FIGURE_6_VARIANTS: Final[tuple[tuple[int, int, OperandBlocks, int], ...]] = (
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
_VARIANT_NAMES: Final = {w: f"Var#{number}" if level else "GEMM" for level, number, w, _ in FIGURE_6_VARIANTS}


def count_touched_blocks(scheme: Scheme, product: int) -> OperandBlocks:
    """Return how many blocks of A, B and C a product touches."""
    a, b, c = (sum(bool(row[product]) for row in matrix) for matrix in (scheme.u, scheme.v, scheme.w))
    return a, b, c


def variant_name(w: OperandBlocks) -> str:
    """Return the number of the variant in Figure 6 (no two of its levels share counts), or else the counts."""
    return _VARIANT_NAMES.get(w, "W({},{},{})".format(*w))


def variants_text(found: Iterable[OperandBlocks]) -> str:
    """Return the variants of some products with their numbers: `Var#0, 2 Var#3`."""
    counts = Counter(map(variant_name, found))
    return ", ".join(f"{count} {variant}" if count > 1 else variant for variant, count in counts.items())
