"""The coefficients (a, b, c) of each step X <- a X + b (X X^T) X + c (X X^T)^2 X."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice, repeat
from math import isfinite
from numbers import Integral, Real
from typing import Any

from fmm.arrays.detect import describe_value

StepCoefficients = tuple[float, float, float]

# The coefficients of the optimizer Muon, the same in each step (Keller Jordan,
# https://kellerjordan.github.io/posts/muon/). With Muon's coefficients, singular values do not converge to 1: they end
# between about 0.7 and 1.2.
MUON: StepCoefficients = (3.4445, -4.7750, 2.0315)
# The coefficients of Amsel, Persson, Musco, Gower, "The Polar Express", arXiv 2505.16932. The polynomials are the best
# ones for singular values from 0.001 to 1; these singular values converge to 1.
POLAR_EXPRESS: tuple[StepCoefficients, ...] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
# The paper evaluates all polynomials except the last one at x / 1.01. Without the division by 1.01, rounding could move
# a singular value out of the interval for which a polynomial was computed.
SAFETY_FACTOR = 1.01


def _damped_coefficients(step: StepCoefficients) -> StepCoefficients:
    a, b, c = step
    return a / SAFETY_FACTOR, b / SAFETY_FACTOR**3, c / SAFETY_FACTOR**5


NAMED_COEFFICIENTS: dict[str, tuple[StepCoefficients, ...]] = {
    "muon": (MUON,),
    "polar-express": (*map(_damped_coefficients, POLAR_EXPRESS[:-1]), POLAR_EXPRESS[-1]),
}


def step_coefficients(coefficients: Any, steps: Any) -> tuple[StepCoefficients, ...]:
    """Return (a, b, c) of each step; if the caller lists fewer triples than steps, the last triple is repeated.

    `coefficients` is a name, three numbers for all steps, or a sequence of three numbers for each step.
    """
    if isinstance(steps, bool) or not isinstance(steps, Integral) or steps < 0:
        raise ValueError(f"steps must be an integer of at least 0, not {describe_value(steps)}")
    found = (
        NAMED_COEFFICIENTS.get(coefficients) if isinstance(coefficients, str) else _coefficient_triples(coefficients)
    )
    if not found:
        names = ", ".join(map(repr, NAMED_COEFFICIENTS))
        raise ValueError(
            f"coefficients must be {names}, three finite numbers, or a sequence of three finite numbers for each step,"
            f" not {describe_value(coefficients)}"
        )
    return tuple(islice(chain(found, repeat(found[-1])), int(steps)))


def _coefficient_triples(coefficients: Any) -> tuple[StepCoefficients, ...]:
    """Return the caller's coefficients as tuples (a, b, c); an empty tuple if the argument is invalid."""
    if not isinstance(coefficients, Iterable):
        return ()
    listed = tuple(coefficients)
    if _is_coefficient_triple(listed):
        listed = (listed,)
    steps = tuple(tuple(step) if isinstance(step, Iterable) else () for step in listed)
    return tuple((float(a), float(b), float(c)) for a, b, c in steps) if all(map(_is_coefficient_triple, steps)) else ()


def _is_coefficient_triple(step: tuple[Any, ...]) -> bool:
    return len(step) == 3 and all(isinstance(x, Real) and isfinite(x) for x in step)
