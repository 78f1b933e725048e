"""Shortest paths of a matrix on the host: a closure table's steps, carried out on arrays."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fmm.kernels.algorithms.closure_table import closure_table
from fmm.kernels.cpu.semirings.semiring_numpy import Array, Noted
from fmm.kernels.plans.steps.closure_steps import MATRIX, TileStep, closure_steps
from fmm.kernels.plans.steps.sums import Place

LEAF = 64  # nodes of a tile that is closed as a whole


class Semiring(Protocol):
    """Who computes: NumPy alone, or what Numba compiled."""

    def product(
        self, left: Array, right: Array, old: Array | None, dest: Array, noted: Noted | None = None
    ) -> None: ...

    def close(self, d: Array, nodes: Array | None = None) -> None: ...


def close_matrix(semiring: Semiring, d: Array, nodes: Array | None = None, leaf: int = LEAF) -> None:
    """D becomes its closure, in place; `nodes`, the last ones before the ends of the ways, are kept up with it."""
    steps = closure_steps(closure_table(), len(d), leaf)
    values, notes = {MATRIX: d}, {MATRIX: nodes}
    for name, rows, cols in steps.temporaries:
        values[name] = np.empty((rows, cols), d.dtype)
        notes[name] = None if nodes is None else np.empty((rows, cols), nodes.dtype)

    def at(place: Place, held: dict[str, Array]) -> Array:
        return held[place.name][place.row : place.row + place.rows, place.col : place.col + place.cols]

    for step in steps.rounds:
        if isinstance(step, TileStep):
            semiring.close(at(step.place, values), None if nodes is None else at(step.place, notes))  # type: ignore[arg-type]
            continue
        for p in step:
            noted = None if nodes is None else Noted(*(at(x, notes) for x in (p.dest, p.old, p.right)))  # type: ignore[arg-type]
            semiring.product(at(p.left, values), at(p.right, values), at(p.old, values), at(p.dest, values), noted)
