"""Order the products of a fused level: which products share a launch, and which launches run on concurrent streams.

Products may run in any order, if no two of them write the same block of C at the same time (Huang, Yu, van de Geijn
2020, section 3.3). The coefficients W of a scheme determine the blocks that a product writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from fmm.kernels.algorithms.scheme import Scheme

FUSED_OPTIONS = ("streams", "atomic", "variants")  # options of a fused level in a plan
MAX_STREAMS = 7  # largest number of streams: one for each product of Strassen's algorithm
ProductGroup = tuple[int, ...]  # indices of the products in one launch
StreamLaunches = tuple[ProductGroup, ...]  # launches that run one after the other
LaunchStage = tuple[StreamLaunches, ...]  # concurrent streams; all streams of a stage end before the next stage begins
BlockSet = frozenset[int]  # indices of blocks of C


@lru_cache(maxsize=256)
def launch_stages(scheme: Scheme, options: tuple[str, ...] = ()) -> tuple[LaunchStage, ...]:
    """Return the launches of a fused level: a list of stages, each with one list of launches per stream.

    Without options, each product of the level is a launch, and all launches are on one stream. With the option
    `streams`, launches are on two streams. With the option `atomic`, products add to C atomically, and run on up to
    MAX_STREAMS streams. With the option `variants`, a launch computes several products that use the same variant of the
    kernel.
    """
    tasks = (
        group_by_variant(scheme, "atomic" in options) if "variants" in options else [(p,) for p in range(scheme.rank)]
    )
    if "streams" in options:
        return tuple(_two_stream_stages(tasks, [_written_blocks_of_c(scheme, task) for task in tasks]))
    if "atomic" in options:
        return (tuple(tuple(tasks[i::MAX_STREAMS]) for i in range(min(MAX_STREAMS, len(tasks)))),)
    return ((tuple(tasks),),)


def count_launches(scheme: Scheme, options: tuple[str, ...] = ()) -> int:
    """Return the number of kernel launches of a fused level."""
    return sum(len(tasks) for stage in launch_stages(scheme, options) for tasks in stage)


def count_cuda_streams(scheme: Scheme, options: tuple[str, ...] = ()) -> int:
    """Return the largest number of concurrent streams of a fused level."""
    return max(len(stage) for stage in launch_stages(scheme, options))


def group_by_variant(scheme: Scheme, atomic: bool) -> list[ProductGroup]:
    """Return groups of products that use the same variant of the kernel; each group is one launch.

    If `atomic` is False, no two products of a group write the same block of C.
    """
    groups: list[list[int]] = []
    for p in range(scheme.rank):
        for group in groups:
            same_variant = count_touched_blocks(scheme, group[0]) == count_touched_blocks(scheme, p)
            if same_variant and (atomic or not _written_blocks_of_c(scheme, group) & _written_blocks_of_c(scheme, [p])):
                group.append(p)
                break
        else:
            groups.append([p])
    return [tuple(group) for group in groups]


def _written_blocks_of_c(scheme: Scheme, task: Sequence[int]) -> BlockSet:
    return frozenset(i for i, row in enumerate(scheme.w) if any(row[p] for p in task))


def _two_stream_stages(tasks: Sequence[ProductGroup], written: Sequence[BlockSet]) -> Iterator[LaunchStage]:
    """Yield the stages (launches between two synchronizations of the streams), as in Figure 7 of Huang et al. (2020).

    In a stage, each stream first gets one launch; the two launches write different blocks of C. Further launches are
    then added to the stream with fewer launches, as long as the two streams write different blocks of C.
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


# ---- variants: one compiled kernel for all products that use equal numbers of blocks of A, of B and of C

OperandBlocks = tuple[int, int, int]  # W_A, W_B, W_C: how many blocks of A, of B and of C a product uses

# Figure 6 of Huang, Yu and van de Geijn (2020): number of levels, number of the variant, numbers of blocks of A, B and
# C in a product (W_A, W_B, W_C), and number of products with this variant.
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
    """Return the numbers of blocks of A, of B and of C that a product reads or writes."""
    a, b, c = (sum(bool(row[product]) for row in matrix) for matrix in (scheme.u, scheme.v, scheme.w))
    return a, b, c


def fused_variant_name(w: OperandBlocks) -> str:
    """Return a variant's name: `Var#3` for number 3 of Figure 6, `W(3,1,2)` (blocks of A, B, C) if not in Figure 6."""
    return _VARIANT_NAMES.get(w, "W({},{},{})".format(*w))


def fused_variants_text(found: Iterable[OperandBlocks]) -> str:
    """Return the text of the products' variants with the number of products of each variant: `Var#0, 2 Var#3`."""
    counts = Counter(map(fused_variant_name, found))
    return ", ".join(f"{count} {variant}" if count > 1 else variant for variant, count in counts.items())
