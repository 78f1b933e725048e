"""Repair predecessors if their chain does not lead back to the start of the path.

If several paths have the same length, a semiring product records the path that it finds first. On a cycle of length
zero (exactly or by rounding), two nodes can record each other as predecessors, since the order in which paths are found
may differ between two entries of a row. This module finds the rows of the predecessor matrix with cycles, and rebuilds
these rows edge by edge. Each step connects one more node to the tree of paths: the node where (length along the new
path) - (computed length) is smallest. For this node, the two lengths differ only by a rounding error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.arrays.numpy_library import to_numpy

Array = np.ndarray[Any, np.dtype[Any]]
PREDECESSOR_PIECE_ENTRIES = 1 << 24  # number of entries of the predecessor matrix that are inspected together


def repair_predecessors(xp: Any, edges: Any, missing: Any, lengths: Any, predecessors: Any) -> None:
    """Repair `predecessors` in place; `missing` is the length that means "no edge"."""
    host_edges: Array | None = None
    count = len(predecessors)
    step = max(PREDECESSOR_PIECE_ENTRIES // max(count, 1), 1)
    for first in range(0, count, step):
        rows = slice(first, min(first + step, count))
        nodes = predecessors[rows]
        # If each node of a row is farther from the start than its predecessor, the row has no cycle of predecessors,
        # and is correct.
        no_farther = (nodes >= 0) & (xp.take_along_axis(lengths[rows], xp.maximum(nodes, 0), 1) >= lengths[rows])
        # The maximum of bytes is computed, and not `any`: CuPy has a compiled maximum, and needs seconds to compile
        # `any`.
        suspects = first + np.flatnonzero(to_numpy(no_farther.view(np.int8).max(axis=1)))
        if not len(suspects):
            continue
        on_device = xp.asarray(suspects)
        lost = to_numpy(_broken_chain_mask(xp, on_device, predecessors[on_device]))
        if not lost.any():
            continue
        if host_edges is None:
            host_edges = _lengths_on_host(edges, missing)
        for row, row_lost in zip(suspects, lost, strict=True):
            if row_lost.any():
                row_lengths = _lengths_on_host(lengths[row], missing)
                rebuilt = _repaired_predecessor_row(
                    int(row), host_edges, row_lengths, to_numpy(predecessors[row]), row_lost
                )
                predecessors[row] = xp.asarray(rebuilt)


def _broken_chain_mask(xp: Any, rows: Any, predecessors: Any) -> Any:
    """Return a mask of the nodes with a chain of predecessors that does not end at the row's start node.

    Each iteration replaces each node's predecessor by the predecessor's predecessor, and so doubles the steps along the
    chain.
    """
    back = xp.where(predecessors < 0, xp.arange(predecessors.shape[1], dtype=predecessors.dtype), predecessors)
    for _ in range(max(predecessors.shape[1] - 1, 1).bit_length()):
        back = xp.take_along_axis(back, back, 1)
    return (predecessors >= 0) & (back != rows[:, None])


def _repaired_predecessor_row(start: int, edges: Array, lengths: Array, predecessors: Array, lost: Array) -> Array:
    """Return a row with new predecessors for nodes in `lost`, so that every chain of predecessors ends at `start`."""
    predecessors, lost_nodes = predecessors.copy(), np.flatnonzero(lost)
    fresh = np.flatnonzero((predecessors >= 0) & ~lost | (np.arange(len(predecessors)) == start))
    best, via = np.full(len(predecessors), np.inf), np.zeros(len(predecessors), predecessors.dtype)
    while len(lost_nodes):
        sums = lengths[fresh, None] + edges[np.ix_(fresh, lost_nodes)]
        least = sums.min(axis=0)
        closer = least < best[lost_nodes]
        via[lost_nodes[closer]] = fresh[sums.argmin(axis=0)[closer]]
        best[lost_nodes] = np.minimum(best[lost_nodes], least)
        node = lost_nodes[np.argmin(best[lost_nodes] - lengths[lost_nodes])]
        predecessors[node] = via[node]
        fresh = _nodes_leading_to(node, predecessors, lost_nodes)
        lost_nodes = np.setdiff1d(lost_nodes, fresh, assume_unique=True)
    return predecessors


def _nodes_leading_to(node: Any, predecessors: Array, lost_nodes: Array) -> Array:
    """Return this node, and all nodes of `lost_nodes` with this node in their chain of predecessors."""
    follows = np.zeros(len(predecessors), bool)
    follows[node] = True
    while True:
        more = lost_nodes[follows[predecessors[lost_nodes]] & ~follows[lost_nodes]]
        if not len(more):
            return np.flatnonzero(follows)
        follows[more] = True


def _lengths_on_host(x: Any, missing: Any) -> Array:
    """Return the lengths as a float64 array on the host, with inf for "no edge"."""
    values = to_numpy(x)
    return np.where(values == missing, np.inf, values.astype(np.float64))
