"""How sure a fitted model is: other calibrations that the same measurements admit about as well.

They are drawn from the fit's own covariance, as its 95 % intervals are: each parameter of a calibration lies in its
interval in 95 % of them, and parameters that can stand in for each other move together. Left out: what the measurements
do not determine, and keeps its value; how other cards of the same kind differ; that our own kernel's parameters, which
are fitted last, would follow the vendor's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration
from fmm.tuner.fit.model import Observation, Solver
from fmm.tuner.fit.parameters import BY_NAME, LEAF_RATE, PARAMETERS, put_all

DRAWS = 399
FEW = 39  # so many of them are asked for what takes long
SURE = 1.96  # standard deviations on either side of 95 %


def sample_calibrations(
    calibration: Calibration, dtype: str, intervals: Mapping[str, Sequence[float]], observed: Sequence[Observation]
) -> tuple[Calibration, ...]:
    """The drawn calibrations, the same for the same arguments; none if no parameter is determined by its interval."""
    determined = {name for name, (low, high) in intervals.items() if _determined(name, low, high)}
    groups = list(_groups(calibration, dtype, determined, observed))
    random = np.random.default_rng(0)
    found = []
    for _ in range(DRAWS if groups else 0):
        drawn = calibration
        for group in groups:
            drawn = group.drawn(drawn, random)
        found.append(drawn)
    return tuple(found)


def _determined(name: str, low: float, high: float) -> bool:
    """Of a parameter by its name, before which may stand that of a leaf with a rate of its own. (Older configs have
    intervals of all, also of some that are no more.)"""
    known = BY_NAME.get(name) or BY_NAME.get(f"rate.{name.rpartition('.')[2]}")
    return known is not None and known.determined(low, high)


@dataclass(frozen=True)
class _Group:
    """Parameters that are fitted together, and the directions in which they may be off, a row each: one standard
    deviation long where 95 % intervals are SURE of them."""

    solver: Solver
    dtype: str
    place: Any
    directions: Any

    def drawn(self, calibration: Calibration, random: np.random.Generator) -> Calibration:
        place = self.place + random.standard_normal(len(self.directions)) @ self.directions
        values = self.solver.values(place)
        within = {p.name: min(max(values[p.name], p.low), p.high) for p in self.solver.free}
        return put_all(calibration, self.dtype, within)


def _groups(
    calibration: Calibration, dtype: str, determined: Collection[str], observed: Sequence[Observation]
) -> Iterator[_Group]:
    """Those of the vendor's products and of sums, of our own kernel, of each leaf with a rate of its own: as they are
    fitted."""
    vendor = [o for o in observed if o.run.plan.leaf_use.leaf == VENDOR.leaf_use.leaf]
    tiled = [o for o in observed if o.run.plan.uses_tile_model]
    for own in (vendor, tiled):
        kinds = {o.kind for o in own}
        free = [p for p in PARAMETERS if p.name in determined and kinds & p.informed_by]
        if free:
            yield _group(Solver(calibration, dtype, own, free), dtype)
    for name in sorted(calibration.rates.keys() - {dtype}):
        own = [o for o in observed if o.run.part != "sums" and o.run.plan.leaf_use.leaf.rate == name]
        free = [p for p in LEAF_RATE if f"{name}.{p.name}" in determined]
        if own and free:
            yield _group(Solver(calibration, name, own, free), name)


def _group(solver: Solver, dtype: str) -> _Group:
    found = solver.solved(1)  # where the fit ended: no further step, but the slopes there
    _, directions = np.linalg.qr(found.directions)  # the same covariance; with these signs there is one such matrix
    signs = np.where(np.diag(directions) < 0, -1.0, 1.0)
    return _Group(solver, dtype, found.x, signs[:, None] * directions / SURE)


def middle_95(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Between which 95 % of so many draws lie, as many beyond either end; None is more than any number."""
    ordered = sorted(values, key=lambda x: inf if x is None else x)
    beyond = max(int(0.025 * (len(values) + 1)) - 1, 0)
    return ordered[beyond], ordered[-1 - beyond]
