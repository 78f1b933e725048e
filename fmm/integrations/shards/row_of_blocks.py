"""The product of a row of processes that multiplied as a rectangle, brought to where a row holds it.

In the rectangle each process has a block of C. Those that follow each other have the same rows of it, say, and other
columns; they exchange parts, until each has all columns of its own part of the rows.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from fmm.integrations.shards.shared_product import Processes, numbers_of, part_of, told_of_loss
from fmm.kernels.distributed.blocks import Box, Holdings
from fmm.kernels.distributed.layout import Layout, M


def block_of_a_row(c: Any, layout: Layout, processes: Processes) -> Any:
    """This process's part of C, cut along the axis that the rectangle's first side cuts, of its block by the layout."""
    me, axis = processes.place, 0 if layout.work[0] == M else 1
    kept = Holdings((layout.m, layout.n), layout.mesh, (axis, axis))
    blocks = [Box(share.rows, share.cols) for share in map(layout.share, range(layout.ranks))]
    mine, late, asked = kept.box(me), list[tuple[Any, Any]](), list[Any]()
    found = c.new_empty((mine.rows.size, mine.cols.size))
    for other, block in enumerate(blocks):
        coming, going = block.shared(mine), blocks[me].shared(kept.box(other))
        place, part = (part_of(x, box.within(y)) for x, box, y in ((found, coming, mine), (c, going, blocks[me])))
        if other == me:
            place.copy_(part)
            continue
        if coming.size:
            late.append((place, c.new_empty(place.shape)))
            asked.append(dist.P2POp(dist.irecv, numbers_of(late[-1][1]), processes.numbers[other], processes.group))
        if going.size:
            sent = numbers_of(part.contiguous())
            asked.append(dist.P2POp(dist.isend, sent, processes.numbers[other], processes.group))
    with told_of_loss(processes, "the product's blocks are brought to a row"):
        for work in dist.batch_isend_irecv(asked):
            work.wait()
    for place, value in late:
        place.copy_(value)
    return found
