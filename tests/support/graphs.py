"""Graphs as matrices of their edges' lengths, zero where there is no edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, Any]


def random_graph(n: int, rng: np.random.Generator) -> Matrix:
    """Return a graph with about eight edges at each node."""
    return np.where(rng.random((n, n)) < min(1, 8 / max(n, 1)), rng.integers(1, 60, (n, n)), 0)


def dense_graph(n: int, rng: np.random.Generator) -> Matrix:
    return rng.integers(1, 60, (n, n))


def grid_graph(n: int, rng: np.random.Generator) -> Matrix:
    """Return a grid with ten nodes in a row. Edges connect neighbours; both directions have lengths of their
    own."""
    place = np.arange(n)
    apart = abs(place[:, None] // 10 - place // 10) + abs(place[:, None] % 10 - place % 10)
    return np.where(apart == 1, rng.integers(1, 9, (n, n)), 0)


def disconnected_graph(n: int, rng: np.random.Generator) -> Matrix:
    """Return a graph without edges between even and odd nodes."""
    place = np.arange(n)
    return np.where((place[:, None] + place) % 2 == 0, rng.integers(1, 60, (n, n)), 0)


def negative_graph(n: int, rng: np.random.Generator) -> Matrix:
    """Return a graph with negative edges and no negative cycle: each node has a height, and heights cancel
    around a cycle."""
    heights, edges = rng.integers(-40, 40, n), random_graph(n, rng)
    return np.where(edges > 0, edges + heights[:, None] - heights, 0)


GRAPHS: dict[str, Callable[[int, np.random.Generator], Matrix]] = {
    "random": random_graph,
    "dense": dense_graph,
    "grid": grid_graph,
    "disconnected": disconnected_graph,
    "negative": negative_graph,
}


def with_length_type(edges: Matrix, dtype: str, rng: np.random.Generator) -> Matrix:
    """Return the lengths in another type, with fractions if the type has them."""
    if dtype[0] != "f":
        return edges.astype(dtype)
    return (edges * rng.uniform(0.5, 1, edges.shape) if (edges >= 0).all() else edges * 0.5).astype(dtype)


def as_lengths(found: Matrix) -> Matrix:
    """Return lengths in float64, with inf where there is no path."""
    lengths = found.astype(np.float64)
    if found.dtype.kind == "i":
        lengths[found == np.iinfo(found.dtype).max] = np.inf
    return lengths


def check_predecessors(found: Matrix, nodes: Matrix, edges: Matrix, tolerance: float) -> None:
    """Check that each entry is the node before the end of a shortest path, or -9999 where there is no
    path."""
    lengths, n = as_lengths(found), len(edges)
    i, j = np.nonzero(np.isfinite(lengths) & ~np.eye(n, dtype=bool))
    before = nodes[i, j]
    assert nodes.dtype == np.int32 and (before >= 0).all() and (edges[before, j] != 0).all()
    np.testing.assert_allclose(lengths[i, before] + edges[before, j], lengths[i, j], rtol=tolerance, atol=tolerance)
    assert (nodes[~np.isfinite(lengths)] == -9999).all() and (np.diag(nodes) == -9999).all()
    _check_trees(nodes)


def _check_trees(nodes: Matrix) -> None:
    """Check that from every end the predecessors lead back to the beginning in less than n steps."""
    n = len(nodes)
    begin, at = np.arange(n)[:, None], np.broadcast_to(np.arange(n), nodes.shape).copy()
    at[(nodes < 0)] = np.broadcast_to(begin, nodes.shape)[nodes < 0]
    for _ in range(n + 1):
        if (at == begin).all():
            return
        at = np.where(at == begin, at, nodes[begin, at])
    raise AssertionError("the nodes lead around a cycle")
