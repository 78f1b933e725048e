"""Predecessors that lead back to where their ways begin.

A product notes for each entry the first of several ways of one length, and another entry of the same row may have
another first: where a cycle has no length, or none that rounding leaves, two nodes can then name each other. Such rows
are found, and mended edge by edge with what is least longer than the length that is known, which is nothing but for
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fmm.arrays.numpy_library import to_numpy

Array = np.ndarray[Any, np.dtype[Any]]
PIECE = 1 << 24  # numbers that are looked at together


def mend_predecessors(xp: Any, edges: Any, missing: Any, lengths: Any, nodes: Any) -> None:
    """`nodes` in place: the last ones before the ends of the shortest ways; `missing` is what stands for no edge."""
    at_home: Array | None = None
    for rows in _pieces(len(nodes)):
        doubtful = rows.start + xp.flatnonzero(_not_longer(xp, lengths[rows], nodes[rows]).any(axis=1))
        astray = _astray(xp, doubtful, nodes[doubtful]) if len(doubtful) else None
        if astray is None or not bool(astray.any()):
            continue
        if at_home is None:
            at_home = _numbers(edges, missing)
        for row, lost in zip(to_numpy(doubtful), to_numpy(astray), strict=True):
            if lost.any():
                nodes[row] = xp.asarray(
                    _mended(row, at_home, _numbers(lengths[row], missing), to_numpy(nodes[row]), lost)
                )


def _pieces(count: int) -> Iterator[slice]:
    rows = max(PIECE // max(count, 1), 1)
    return (slice(i, min(i + rows, count)) for i in range(0, count, rows))


def _not_longer(xp: Any, lengths: Any, nodes: Any) -> Any:
    """To which nodes the way is no longer than to the node before: a row without such nodes has no cycle."""
    return (nodes >= 0) & (xp.take_along_axis(lengths, xp.maximum(nodes, 0), 1) >= lengths)


def _astray(xp: Any, rows: Any, nodes: Any) -> Any:
    """From which nodes the way back does not end where the row's ways begin. Each round goes back
    twice as far as the one before."""
    back = xp.where(nodes < 0, xp.arange(nodes.shape[1], dtype=nodes.dtype), nodes)
    for _ in range(max(nodes.shape[1] - 1, 1).bit_length()):
        back = xp.take_along_axis(back, back, 1)
    return (nodes >= 0) & (back != rows[:, None])


def _mended(start: int, edges: Array, lengths: Array, before: Array, lost: Array) -> Array:
    """The row of predecessors, with new ones for the nodes that are `lost`, so that their ways too lead back."""
    before, away = before.copy(), np.flatnonzero(lost)
    fresh = np.flatnonzero((before >= 0) & ~lost | (np.arange(len(before)) == start))
    best, via = np.full(len(before), np.inf), np.zeros(len(before), before.dtype)
    while len(away):
        sums = lengths[fresh, None] + edges[np.ix_(fresh, away)]
        least = sums.min(axis=0)
        closer = least < best[away]
        via[away[closer]] = fresh[sums.argmin(axis=0)[closer]]
        best[away] = np.minimum(best[away], least)
        node = away[np.argmin(best[away] - lengths[away])]
        before[node] = via[node]
        fresh = _followers(node, before, away)
        away = np.setdiff1d(away, fresh, assume_unique=True)
    return before


def _followers(node: Any, before: Array, away: Array) -> Array:
    """The node, and all those of `away` from which the way back leads to it."""
    found = np.zeros(len(before), bool)
    found[node] = True
    while True:
        more = away[found[before[away]] & ~found[away]]
        if not len(more):
            return np.flatnonzero(found)
        found[more] = True


def _numbers(x: Any, missing: Any) -> Array:
    values = to_numpy(x)
    return np.where(values == missing, np.inf, values.astype(np.float64))
