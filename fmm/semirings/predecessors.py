"""Repair of predecessors that do not lead back to their path's start.

A product records for each entry the first of several paths of one length. Another entry of the same row may record
another first path. On a cycle of length zero, or of a length that rounding absorbs, two nodes can then name each other.
Rows with these nodes are found and rebuilt edge by edge: each new edge gives the path that exceeds the computed length
least (by rounding alone).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.arrays.numpy_library import to_numpy

Array = np.ndarray[Any, np.dtype[Any]]
PIECE_NUMBERS = 1 << 24  # numbers that are inspected at a time


def mend_predecessors(xp: Any, edges: Any, missing: Any, lengths: Any, predecessors: Any) -> None:
    """Repair `predecessors` in place; `missing` is the length that means "no edge"."""
    host_edges: Array | None = None
    count = len(predecessors)
    step = max(PIECE_NUMBERS // max(count, 1), 1)
    for first in range(0, count, step):
        rows = slice(first, min(first + step, count))
        nodes = predecessors[rows]
        # A cycle has a node that is no farther than its predecessor; rows without this node are right.
        no_farther = (nodes >= 0) & (xp.take_along_axis(lengths[rows], xp.maximum(nodes, 0), 1) >= lengths[rows])
        # The largest byte of a row: CuPy has this reduction compiled, and compiles `any` for seconds.
        suspects = first + np.flatnonzero(to_numpy(no_farther.view(np.int8).max(axis=1)))
        if not len(suspects):
            continue
        on_device = xp.asarray(suspects)
        lost = to_numpy(_lost_nodes(xp, on_device, predecessors[on_device]))
        if not lost.any():
            continue
        if host_edges is None:
            host_edges = _host_lengths(edges, missing)
        for row, row_lost in zip(suspects, lost, strict=True):
            if row_lost.any():
                row_lengths = _host_lengths(lengths[row], missing)
                rebuilt = _rebuilt_row(int(row), host_edges, row_lengths, to_numpy(predecessors[row]), row_lost)
                predecessors[row] = xp.asarray(rebuilt)


def _lost_nodes(xp: Any, rows: Any, predecessors: Any) -> Any:
    """Return the nodes from which the way back does not end at the row's start node.

    Each round follows the way back twice as far as the round before.
    """
    back = xp.where(predecessors < 0, xp.arange(predecessors.shape[1], dtype=predecessors.dtype), predecessors)
    for _ in range(max(predecessors.shape[1] - 1, 1).bit_length()):
        back = xp.take_along_axis(back, back, 1)
    return (predecessors >= 0) & (back != rows[:, None])


def _rebuilt_row(start: int, edges: Array, lengths: Array, predecessors: Array, lost: Array) -> Array:
    """Return a row of predecessors with new ones for the lost nodes, so that every way leads back to `start`."""
    predecessors, away = predecessors.copy(), np.flatnonzero(lost)
    fresh = np.flatnonzero((predecessors >= 0) & ~lost | (np.arange(len(predecessors)) == start))
    best, via = np.full(len(predecessors), np.inf), np.zeros(len(predecessors), predecessors.dtype)
    while len(away):
        sums = lengths[fresh, None] + edges[np.ix_(fresh, away)]
        least = sums.min(axis=0)
        closer = least < best[away]
        via[away[closer]] = fresh[sums.argmin(axis=0)[closer]]
        best[away] = np.minimum(best[away], least)
        node = away[np.argmin(best[away] - lengths[away])]
        predecessors[node] = via[node]
        fresh = _followers(node, predecessors, away)
        away = np.setdiff1d(away, fresh, assume_unique=True)
    return predecessors


def _followers(node: Any, predecessors: Array, away: Array) -> Array:
    """Return the node and all nodes of `away` from which the way back leads to it."""
    follows = np.zeros(len(predecessors), bool)
    follows[node] = True
    while True:
        more = away[follows[predecessors[away]] & ~follows[away]]
        if not len(more):
            return np.flatnonzero(follows)
        follows[more] = True


def _host_lengths(x: Any, missing: Any) -> Array:
    """Return lengths as float64 on the host, inf where there is no edge."""
    values = to_numpy(x)
    return np.where(values == missing, np.inf, values.astype(np.float64))
