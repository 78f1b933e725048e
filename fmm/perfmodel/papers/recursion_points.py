"""When to recurse: the alpha/pi model of D'Alberto and Nicolau (ICS 2007), for any bilinear scheme.

alpha is the time of one element of a block addition, pi of one flop of the vendor's product; only their ratio matters.
A is m x k and B is k x n here (the paper writes m x n and n x p). Left out: strides and caches, the lower cost of
copies, and, unless the ratio is a function of the shape, the lower rate of small products.

`hasa_choice` chooses by Equation 2 from a calibration's alpha and pi: FMM_TUNING_MODE=hasa. It has no margin, so that a
plan with a small predicted gain is chosen too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import TYPE_CHECKING

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.stability import expected_error_growth
from fmm.perfmodel.work import estimated_workspace
from fmm.problem import Problem, Shape, positive_shape

if TYPE_CHECKING:
    from fmm.kernels.algorithms.scheme import Scheme

Ratio = float | Callable[[int, int, int], float]  # alpha / pi, fixed or by shape
Coefficients = Sequence[Sequence[Fraction | int | float]]  # blocks x products


@dataclass(frozen=True, slots=True)
class BlockWork:
    """One level of a bilinear algorithm <m0,k0,n0;products>: its passes over A-, B- and C-sized blocks."""

    name: str
    split: Shape
    products: int
    additions: tuple[int, int, int]
    copies: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        if min(self.split) < 1 or self.products < 1:
            raise ValueError(f"{self.name}: split {self.split} and products {self.products} must be positive")
        if min(self.additions) < 0 or min(self.copies) < 0:
            counts = f"additions {self.additions}, copies {self.copies}"
            raise ValueError(f"{self.name}: negative number of passes in {counts}")

    @property
    def passes(self) -> tuple[int, int, int]:
        """Block additions and copies, which have the same weight in the model."""
        a, b, c = (x + y for x, y in zip(self.additions, self.copies, strict=True))
        return a, b, c

    @property
    def classical(self) -> int:
        """Products of the classical algorithm on the same grid of blocks."""
        m0, k0, n0 = self.split
        return m0 * k0 * n0


STRASSEN = BlockWork("strassen", (2, 2, 2), 7, additions=(5, 5, 8), copies=(0, 0, 4))  # Table 2: 18 + 4 = 22
WINOGRAD = BlockWork("winograd", (2, 2, 2), 7, additions=(4, 4, 7))  # 15, each product written where it is used first


def block_work(name: str, split: Shape, U: Coefficients, V: Coefficients, W: Coefficients) -> BlockWork:
    """Return one level of any scheme, each operand and block of C formed on its own (nothing shared, no copies)."""
    m0, k0, n0 = split
    grids = (m0 * k0, k0 * n0, m0 * n0)
    if (len(U), len(V), len(W)) != grids:
        raise ValueError(f"{name}: a {split} grid has {grids} blocks, the coefficients {len(U), len(V), len(W)}")
    left, right = _unshared_additions(zip(*U, strict=True)), _unshared_additions(zip(*V, strict=True))
    return BlockWork(name, split, len(U[0]), (left, right, _unshared_additions(W)))


def scheme_work(scheme: Scheme) -> BlockWork:
    """Return one level of a scheme as the kernels run it, common sums shared: 15 additions for Winograd's."""
    p = scheme.programs
    additions = (p.left.additions, p.right.additions, p.join.additions)
    return BlockWork(scheme.name, scheme.size, scheme.rank, additions)


def _unshared_additions(sums: Iterable[Iterable[Fraction | int | float]]) -> int:
    return sum(max(0, sum(1 for c in coefficients if c) - 1) for coefficients in sums)


# ---- Equations 2 and 3


def recurse(shape: Shape, ratio: Ratio, work: BlockWork = STRASSEN, epsilon: float = 0.0) -> bool:
    """Return True if one more level pays by Equation 2; epsilon is section 4.1.1's addition to alpha/pi.

    For odd sizes the left side of the paper's equation is the largest block's product, not the exact saving.
    """
    if _too_small(shape, work):
        return False
    return saved_flops(shape, work) > (_ratio_at(ratio, shape) + epsilon) * added_elements(shape, work)


def greatest_epsilon(shape: Shape, ratio: Ratio, work: BlockWork = STRASSEN) -> float:
    """Return the epsilon below which Equation 2 adds one more level; -inf if the shape cannot be cut."""
    if _too_small(shape, work):
        return -inf
    return float(saved_flops(shape, work) / added_elements(shape, work)) - _ratio_at(ratio, shape)


def saved_flops(shape: Shape, work: BlockWork = STRASSEN) -> int:
    """Return the flops of the products that one level saves (twice Equation 2's left side, for Strassen's)."""
    m, k, n = _blocks(shape, work.split)
    return 2 * (work.classical - work.products) * m * k * n


def added_elements(shape: Shape, work: BlockWork = STRASSEN) -> Fraction:
    """Return Equation 2's bracket: elements that one level passes over (the largest blocks of A and B, all of C)."""
    (m, k, n), (m0, _, n0) = _blocks(shape, work.split), work.split
    a, b, c = work.passes
    return a * m * k + b * k * n + Fraction(c * shape[0] * shape[2], m0 * n0)


def recursion_point(ratio: float, work: BlockWork = STRASSEN, epsilon: float = 0.0) -> float:
    """Return the size of a cube from which one level pays by Equation 3: 22 alpha/pi for Strassen's; inf: never."""
    saved = work.classical - work.products
    if saved <= 0:
        return inf
    (m0, k0, n0), (a, b, c) = work.split, work.passes
    return (ratio + epsilon) * (a * n0 + b * m0 + c * k0) / (2 * saved)


@dataclass(frozen=True, slots=True)
class Level:
    """One level of recursion: the shape that it splits, the number of these products, and what each saves and adds."""

    shape: Shape
    products: int
    saved: int
    added: Fraction


def levels(shape: Shape, ratio: Ratio, work: BlockWork = STRASSEN, epsilon: float = 0.0) -> tuple[Level, ...]:
    """Return the levels of Equation 2, each on the largest blocks of the last; the length is the depth."""
    found: list[Level] = []
    while recurse(shape, ratio, work, epsilon) and _blocks(shape, work.split) != shape:
        found.append(_level(shape, work, len(found)))
        shape = _blocks(shape, work.split)
    return tuple(found)


def levels_until(shape: Shape, point: float, work: BlockWork = STRASSEN) -> tuple[Level, ...]:
    """Return the levels of sections 4.1.1 and 4.1.2: stop when at least one size is below the recursion point."""
    found: list[Level] = []
    while min(positive_shape(shape)) >= max(point, *work.split) and _blocks(shape, work.split) != shape:
        found.append(_level(shape, work, len(found)))
        shape = _blocks(shape, work.split)
    return tuple(found)


def _level(shape: Shape, work: BlockWork, above: int) -> Level:
    return Level(shape, work.products**above, saved_flops(shape, work), added_elements(shape, work))


# ---- section 4.2: the estimate of the speedup


def first_speedup(n: float, point: float) -> float:
    """Return sp_1 = (1 - n_1/n)/8, the share of the classical time that one level of Strassen's saves on a cube."""
    return (1 - point / n) / 8


def speedups(
    shape: Shape, ratio: Ratio, depth: int, work: BlockWork = STRASSEN, epsilon: float = 0.0
) -> tuple[float, ...]:
    """Return sp_i, the share of the classical time that level i saves (negative: costs); the estimate is the sum.

    The paper gives only sp_1 and says that the later ones are smaller; here level i's share is that of its
    products**(i-1) smaller problems.
    """
    m, k, n = positive_shape(shape)
    shares: list[float] = []
    for above in range(depth):
        level = _level(shape, work, above)
        gain = level.saved - (_ratio_at(ratio, shape) + epsilon) * level.added
        shares.append(float(level.products * gain) / (2 * m * k * n))
        shape = _blocks(shape, work.split)
    return tuple(shares)


# ---- Table 1: Balanced


@dataclass(frozen=True, slots=True)
class Balanced:
    """A product cut by Table 1: almost square leaves and their numbers, the number of cuts, the longest chain."""

    leaves: tuple[tuple[Shape, int], ...]
    cuts: int
    depth: int


def balanced(shape: Shape, gamma: float = 2.0) -> Balanced:
    """Cut by Table 1: halve the longest size while it is at least gamma times the larger of the other two."""
    if gamma <= 1:
        raise ValueError(f"gamma must be above 1, not {gamma}")
    work: Counter[Shape] = Counter({positive_shape(shape): 1})
    leaves: Counter[Shape] = Counter()
    cuts = depth = 0
    while work:
        halves: Counter[Shape] = Counter()
        for piece, times in work.items():
            axis = _axis_to_cut(piece, gamma)
            if axis is None:
                leaves[piece] += times
                continue
            cuts += times
            for part in _halved(piece, axis):
                halves[part] += times
        depth += bool(halves)
        work = halves
    return Balanced(tuple(sorted(leaves.items(), reverse=True)), cuts, depth)


def _axis_to_cut(shape: Shape, gamma: float) -> int | None:
    """Return the axis that Table 1 cuts; it tests m, then the columns of B, then the shared size."""
    for axis in (0, 2, 1):
        others = shape[:axis] + shape[axis + 1 :]
        if shape[axis] > 1 and shape[axis] >= gamma * max(others):
            return axis
    return None


def _halved(shape: Shape, axis: int) -> tuple[Shape, Shape]:
    m, k, n = shape
    size = shape[axis]
    large, small = -(-size // 2), size // 2
    if axis == 0:
        return (large, k, n), (small, k, n)
    if axis == 1:
        return (m, large, n), (m, small, n)
    return (m, k, large), (m, k, small)


# ---- helpers


def _too_small(shape: Shape, work: BlockWork) -> bool:
    """Return True if a side is shorter than the number of its parts."""
    return any(size < parts for size, parts in zip(positive_shape(shape), work.split, strict=True))


def _blocks(shape: Shape, split: Shape) -> Shape:
    """Return the largest blocks of a split."""
    return -(-shape[0] // split[0]), -(-shape[1] // split[1]), -(-shape[2] // split[2])


def _ratio_at(ratio: Ratio, shape: Shape) -> float:
    value = ratio(*shape) if callable(ratio) else ratio
    if value < 0:
        raise ValueError(f"alpha/pi must not be negative: {value}")
    return value


def alpha(calibration: Calibration, itemsize: int) -> float:
    """Return the seconds of one element of a block addition: two reads, one write."""
    return 3 * itemsize / calibration.stream


def pi(calibration: Calibration, problem: Problem) -> float:
    """Return the seconds of one flop of the vendor's product of this problem."""
    rate = calibration.rate(problem.dtype)
    slower = 1 + rate.fill / (problem.m * problem.n) + rate.pipe / problem.k
    return slower / rate.flops


def alpha_over_pi(calibration: Calibration, problem: Problem) -> float:
    """Return alpha / pi for Equation 2. (A complex multiply-add counts as the two flops of Equation 2.)"""
    one = pi(calibration, problem) * problem.type.flops / 2
    return alpha(calibration, problem.itemsize) / one


def hasa_plan(depth: int) -> Plan:
    """Return the plan with this number of levels of HASA above the vendor's product."""
    return Plan.parse(" > ".join(["hasa"] * depth + ["vendor"]))


def hasa_choice(problem: Problem, calibration: Calibration, limits: Limits, epsilon: float = 0.0) -> Plan:
    """Return HASA with as many levels as Equation 2 has, or as the limits of error and workspace admit if fewer."""
    if 0 in problem.size or problem.writes_triangle:
        return VENDOR

    def ratio(m: int, k: int, n: int) -> float:
        return alpha_over_pi(calibration, Problem(m, k, n, problem.dtype))

    for depth in range(len(levels(problem.size, ratio, epsilon=epsilon)), 0, -1):
        plan = hasa_plan(depth)
        allowed = limits.allow(plan, expected_error_growth(plan, problem.dtype, not calibration.batches))
        if allowed and estimated_workspace(plan, problem) <= limits.workspace:
            return plan
    return VENDOR
