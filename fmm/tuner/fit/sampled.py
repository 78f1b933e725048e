"""Draw random calibrations around a fit, to compute 95 % intervals of numbers that follow from the calibration.

The calibrations are drawn with the covariance of the fit. In 95 % of the calibrations, a parameter is inside its 95 %
interval, and correlated parameters vary together. Fixed parameters do not vary. The calibrations neglect differences
between GPUs of the same model, and the effect of the vendor's parameters on fmm's own kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from fmm.perfmodel.calibration import Calibration
from fmm.tuner.fit.model import LeastSquares, Observation
from fmm.tuner.fit.parameters import FIT_PARAMETERS, FIT_PARAMETERS_BY_NAME, LEAF_RATE_PARAMETERS, with_parameters

SAMPLE_COUNT = 399  # number of sampled calibrations
REDUCED_SAMPLE_COUNT = 39  # number of sampled calibrations for numbers that take long to compute
STANDARD_DEVIATIONS_95 = 1.96  # half width of a 95 % interval, in standard deviations


def sample_calibrations(
    calibration: Calibration, dtype: str, intervals: Mapping[str, Sequence[float]], observed: Sequence[Observation]
) -> tuple[Calibration, ...]:
    """Return sampled calibrations, the same for the same arguments; an empty tuple if no parameter is determined."""
    determined = {name for name, (low, high) in intervals.items() if _is_sampled_parameter(name, low, high)}
    groups = list(_parameter_groups(calibration, dtype, determined, observed))
    random = np.random.default_rng(0)
    samples = []
    for _ in range(SAMPLE_COUNT if groups else 0):
        sample = calibration
        for group in groups:
            sample = group.sample_calibration(sample, random)
        samples.append(sample)
    return tuple(samples)


def _is_sampled_parameter(name: str, low: float, high: float) -> bool:
    """Return True if the 95 % interval determines the parameter; `name` may begin with a leaf's name."""
    parameter = FIT_PARAMETERS_BY_NAME.get(name) or FIT_PARAMETERS_BY_NAME.get(f"rate.{name.rpartition('.')[2]}")
    return parameter is not None and parameter.is_determined_by_interval(low, high)


@dataclass(frozen=True)
class _ParameterGroup:
    """Parameters that are fitted together, with the covariance of their errors.

    The rows of `directions` are independent displacements of the parameters, each by one standard deviation.
    """

    problem: LeastSquares
    dtype: str
    x: Any  # the fitted values of the parameters, as coordinates of the fit
    directions: Any

    def sample_calibration(self, calibration: Calibration, random: np.random.Generator) -> Calibration:
        """Return the calibration with random values, near the fitted values, for the parameters of this group."""
        x = self.x + random.standard_normal(len(self.directions)) @ self.directions
        values = self.problem.parameters_at(x)
        within = {p.name: min(max(values[p.name], p.low), p.high) for p in self.problem.free}
        return with_parameters(calibration, self.dtype, within)


def _parameter_groups(
    calibration: Calibration, dtype: str, determined: Collection[str], observed: Sequence[Observation]
) -> Iterator[_ParameterGroup]:
    """Yield the groups of parameters that are fitted together.

    The groups are the parameters of the vendor's products and of sums, the parameters of fmm's own kernel, and the
    parameters of each leaf with a separate rate in the calibration.
    """
    vendor = [o for o in observed if o.has_vendor_leaf]
    tiled = [o for o in observed if o.run.plan.uses_tile_model]
    for own in (vendor, tiled):
        kinds = {o.run_kind for o in own}
        free = [p for p in FIT_PARAMETERS if p.name in determined and kinds & p.informed_by]
        if free:
            yield _parameter_group_of_problem(LeastSquares(calibration, dtype, own, free), dtype)
    for name in sorted(calibration.rates.keys() - {dtype}):
        own = [o for o in observed if o.run.part != "sums" and o.run.plan.leaf_use.leaf.rate == name]
        free = [p for p in LEAF_RATE_PARAMETERS if f"{name}.{p.name}" in determined]
        if own and free:
            yield _parameter_group_of_problem(LeastSquares(calibration, name, own, free), name)


def _parameter_group_of_problem(problem: LeastSquares, dtype: str) -> _ParameterGroup:
    solution = problem.solve(1)  # one evaluation suffices for the Jacobian at the fitted parameters
    # Replace the matrix of directions by the factor R of its QR factorization. R has the same covariance and, with a
    # positive diagonal, is unique, so that samples are reproducible.
    _, directions = np.linalg.qr(solution.directions)
    signs = np.where(np.diag(directions) < 0, -1.0, 1.0)
    return _ParameterGroup(problem, dtype, solution.x, signs[:, None] * directions / STANDARD_DEVIATIONS_95)


def central_interval_95(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return the central 95 % interval of sampled values; None is treated as infinity."""
    ordered = sorted(values, key=lambda x: inf if x is None else x)
    beyond = max(int(0.025 * (len(values) + 1)) - 1, 0)
    return ordered[beyond], ordered[-1 - beyond]
