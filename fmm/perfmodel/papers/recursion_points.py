"""Decide when one more recursion level pays, by the model of D'Alberto and Nicolau (ICS 2007), for any bilinear scheme.

alpha is the time of one element of a block addition, and pi is the time of one flop of the vendor's product. Equations
2 and 3 need only the ratio alpha/pi. In this module A is m x k and B is k x n; the paper writes m x n and n x p. The
model leaves out strides, caches and the lower cost of copies. A fixed ratio alpha/pi also leaves out the lower rate of
small products.

With FMM_TUNING_MODE=hasa, `choose_hasa_plan` chooses the number of levels by Equation 2, or for squares by the
recursion point n1. The rule of D'Alberto and Nicolau has no margin: a plan with any predicted gain is chosen.
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
from fmm.problem import Problem, Shape, check_positive_shape

if TYPE_CHECKING:
    from fmm.kernels.algorithms.scheme import Scheme

# the ratio alpha / pi, as a number or as a function of m, k and n
AlphaPiRatio = float | Callable[[int, int, int], float]
# a scheme's coefficient matrix, with a row for each block and a column for each product
Coefficients = Sequence[Sequence[Fraction | int | float]]


@dataclass(frozen=True, slots=True)
class BlockWork:
    """The products and the passes over blocks of one level of the bilinear algorithm <m0, k0, n0; products>."""

    name: str
    split: Shape  # m0, k0, n0: the number of parts into which the level cuts m, k and n
    products: int
    additions: tuple[int, int, int]  # the number of additions of two blocks of A, of B and of C
    copies: tuple[int, int, int] = (0, 0, 0)  # the number of copies of a block of A, of B and of C

    def __post_init__(self) -> None:
        if min(self.split) < 1 or self.products < 1:
            raise ValueError(f"{self.name}: split {self.split} and products {self.products} must be positive")
        if min(self.additions) < 0 or min(self.copies) < 0:
            counts = f"additions {self.additions}, copies {self.copies}"
            raise ValueError(f"{self.name}: negative number of passes in {counts}")

    @property
    def pass_counts(self) -> tuple[int, int, int]:
        """The number of passes over blocks of A, of B and of C: additions and copies, which have equal weights."""
        a, b, c = (x + y for x, y in zip(self.additions, self.copies, strict=True))
        return a, b, c

    @property
    def classical_products(self) -> int:
        """The number of products of the classical algorithm for m0 x k0 and k0 x n0 blocks."""
        m0, k0, n0 = self.split
        return m0 * k0 * n0


# Strassen's algorithm in Table 2 of the paper has 18 additions and 4 copies, which make 22 passes over blocks.
STRASSEN_WORK = BlockWork("strassen", (2, 2, 2), 7, additions=(5, 5, 8), copies=(0, 0, 4))
# Winograd's variant has 15 additions and writes the products to C without copies.
WINOGRAD_WORK = BlockWork("winograd", (2, 2, 2), 7, additions=(4, 4, 7))


def block_work(name: str, split: Shape, U: Coefficients, V: Coefficients, W: Coefficients) -> BlockWork:
    """Return the work of one level of the scheme U, V, W without shared additions and without copies."""
    m0, k0, n0 = split
    grids = (m0 * k0, k0 * n0, m0 * n0)
    if (len(U), len(V), len(W)) != grids:
        raise ValueError(f"{name}: a {split} grid has {grids} blocks, the coefficients {len(U), len(V), len(W)}")
    left, right = _separate_addition_count(zip(*U, strict=True)), _separate_addition_count(zip(*V, strict=True))
    return BlockWork(name, split, len(U[0]), (left, right, _separate_addition_count(W)))


def scheme_work(scheme: Scheme) -> BlockWork:
    """Return the work of one level of a scheme in which common sums are formed once, as kernels do."""
    p = scheme.addition_programs
    additions = (p.left.addition_count, p.right.addition_count, p.join.addition_count)
    return BlockWork(scheme.name, scheme.size, scheme.rank, additions)


def _separate_addition_count(sums: Iterable[Iterable[Fraction | int | float]]) -> int:
    return sum(max(0, sum(1 for c in coefficients if c) - 1) for coefficients in sums)


# ---- Equations 2 and 3


def is_level_profitable(
    shape: Shape, ratio: AlphaPiRatio, work: BlockWork = STRASSEN_WORK, epsilon: float = 0.0
) -> bool:
    """Return True if one more level pays by Equation 2 with the ratio alpha/pi + epsilon (section 4.1.1).

    For odd sizes, Equation 2 counts all blocks as large as the largest block.
    """
    if _is_too_small(shape, work):
        return False
    return saved_flops(shape, work) > (_alpha_over_pi_of_shape(ratio, shape) + epsilon) * added_elements(shape, work)


def max_epsilon(shape: Shape, ratio: AlphaPiRatio, work: BlockWork = STRASSEN_WORK) -> float:
    """Return the largest epsilon with which one more level pays by Equation 2; -inf if the shape cannot be cut."""
    if _is_too_small(shape, work):
        return -inf
    return float(saved_flops(shape, work) / added_elements(shape, work)) - _alpha_over_pi_of_shape(ratio, shape)


def saved_flops(shape: Shape, work: BlockWork = STRASSEN_WORK) -> int:
    """Return the flops that one level saves; for Strassen's algorithm twice the left-hand side of Equation 2."""
    m, k, n = _largest_blocks(shape, work.split)
    return 2 * (work.classical_products - work.products) * m * k * n


def added_elements(shape: Shape, work: BlockWork = STRASSEN_WORK) -> Fraction:
    """Return the number of elements that the passes of one level move; this is the bracket in Equation 2.

    A block of A or B counts with the size of the largest block, a block of C with the average size.
    """
    (m, k, n), (m0, _, n0) = _largest_blocks(shape, work.split), work.split
    a, b, c = work.pass_counts
    return a * m * k + b * k * n + Fraction(c * shape[0] * shape[2], m0 * n0)


def recursion_point(ratio: float, work: BlockWork = STRASSEN_WORK, epsilon: float = 0.0) -> float:
    """Return n_1, the side m = k = n from which one level pays by Equation 3; for Strassen's algorithm 22 alpha/pi.

    The side n_1 is infinite if the level saves no products.
    """
    saved = work.classical_products - work.products
    if saved <= 0:
        return inf
    (m0, k0, n0), (a, b, c) = work.split, work.pass_counts
    return (ratio + epsilon) * (a * n0 + b * m0 + c * k0) / (2 * saved)


@dataclass(frozen=True, slots=True)
class RecursionLevel:
    """One recursion level: its number of products, saved flops and added elements."""

    shape: Shape  # sizes m, k, n of the products that the level splits
    products: int  # number of products that the level splits
    saved: int  # number of flops that the level saves in each product
    added: Fraction  # number of elements in the level's passes for each product


def recursion_levels(
    shape: Shape, ratio: AlphaPiRatio, work: BlockWork = STRASSEN_WORK, epsilon: float = 0.0
) -> tuple[RecursionLevel, ...]:
    """Return the levels that pay by Equation 2, outermost first; a level splits the previous level's largest blocks."""
    found: list[RecursionLevel] = []
    while is_level_profitable(shape, ratio, work, epsilon) and _largest_blocks(shape, work.split) != shape:
        found.append(_recursion_level(shape, work, len(found)))
        shape = _largest_blocks(shape, work.split)
    return tuple(found)


def levels_above_recursion_point(
    shape: Shape, point: float, work: BlockWork = STRASSEN_WORK
) -> tuple[RecursionLevel, ...]:
    """Return the levels by sections 4.1.1 and 4.1.2: a level needs m, k and n >= the recursion point."""
    found: list[RecursionLevel] = []
    while min(check_positive_shape(shape)) >= max(point, *work.split) and _largest_blocks(shape, work.split) != shape:
        found.append(_recursion_level(shape, work, len(found)))
        shape = _largest_blocks(shape, work.split)
    return tuple(found)


def _recursion_level(shape: Shape, work: BlockWork, above: int) -> RecursionLevel:
    """Return the RecursionLevel that splits products of this shape, below `above` other levels."""
    return RecursionLevel(shape, work.products**above, saved_flops(shape, work), added_elements(shape, work))


# ---- section 4.2: the estimate of the speedup


def first_level_speedup(n: float, point: float) -> float:
    """Return sp_1 = (1 - n_1/n)/8, the share of the classical time that one level of Strassen's algorithm saves."""
    return (1 - point / n) / 8


def level_speedups(
    shape: Shape, ratio: AlphaPiRatio, depth: int, work: BlockWork = STRASSEN_WORK, epsilon: float = 0.0
) -> tuple[float, ...]:
    """Return sp_1, sp_2, ...: the shares of the classical time that the levels save; negative if a level costs time.

    All levels together save sp_1 + sp_2 + ... of the classical time. The paper gives only sp_1, the saving of the
    outermost level, and says that the next levels save less. Level i splits the products of level i - 1.
    """
    m, k, n = check_positive_shape(shape)
    shares: list[float] = []
    for above in range(depth):
        level = _recursion_level(shape, work, above)
        gain = level.saved - (_alpha_over_pi_of_shape(ratio, shape) + epsilon) * level.added
        shares.append(float(level.products * gain) / (2 * m * k * n))
        shape = _largest_blocks(shape, work.split)
    return tuple(shares)


# ---- Table 1 of the paper: the algorithm Balanced


@dataclass(frozen=True, slots=True)
class BalancedCut:
    """A product that the paper's algorithm Balanced (Table 1) cuts into almost square products."""

    leaves: tuple[tuple[Shape, int], ...]  # pairs of (m, k, n) and the number of uncut products with this shape
    cuts: int  # number of products that are halved
    depth: int  # largest number of cuts on the way to an uncut product


def cut_balanced(shape: Shape, gamma: float = 2.0) -> BalancedCut:
    """Return the cut of a product by Table 1: a size is halved while it is at least gamma times both other sizes."""
    if gamma <= 1:
        raise ValueError(f"gamma must be above 1, not {gamma}")
    work: Counter[Shape] = Counter({check_positive_shape(shape): 1})
    leaves: Counter[Shape] = Counter()
    cuts = depth = 0
    while work:
        halves: Counter[Shape] = Counter()
        for piece, times in work.items():
            axis = _axis_cut_by_table_1(piece, gamma)
            if axis is None:
                leaves[piece] += times
                continue
            cuts += times
            for part in _halved_shapes(piece, axis):
                halves[part] += times
        depth += bool(halves)
        work = halves
    return BalancedCut(tuple(sorted(leaves.items(), reverse=True)), cuts, depth)


def _axis_cut_by_table_1(shape: Shape, gamma: float) -> int | None:
    """Return the axis that Table 1 cuts (0 for m, 1 for k, 2 for n; tested in the order m, n, k); None for no cut."""
    for axis in (0, 2, 1):
        others = shape[:axis] + shape[axis + 1 :]
        if shape[axis] > 1 and shape[axis] >= gamma * max(others):
            return axis
    return None


def _halved_shapes(shape: Shape, axis: int) -> tuple[Shape, Shape]:
    """Return the two shapes of a product that is halved along an axis, the larger shape first."""
    m, k, n = shape
    size = shape[axis]
    large, small = -(-size // 2), size // 2
    if axis == 0:
        return (large, k, n), (small, k, n)
    if axis == 1:
        return (m, large, n), (m, small, n)
    return (m, k, large), (m, k, small)


# ---- helpers


def _is_too_small(shape: Shape, work: BlockWork) -> bool:
    """Return True if a size is smaller than the number of parts into which the level cuts the size."""
    return any(size < parts for size, parts in zip(check_positive_shape(shape), work.split, strict=True))


def _largest_blocks(shape: Shape, split: Shape) -> Shape:
    """Return m, k, n of the largest blocks if each size is cut into the number of parts in `split`."""
    return -(-shape[0] // split[0]), -(-shape[1] // split[1]), -(-shape[2] // split[2])


def _alpha_over_pi_of_shape(ratio: AlphaPiRatio, shape: Shape) -> float:
    value = ratio(*shape) if callable(ratio) else ratio
    if value < 0:
        raise ValueError(f"alpha/pi must not be negative: {value}")
    return value


def alpha_seconds(calibration: Calibration, itemsize: int) -> float:
    """Return alpha, the seconds of one element of a block addition: two reads and one write of `itemsize` bytes."""
    return 3 * itemsize / calibration.stream


def pi_seconds(calibration: Calibration, problem: Problem) -> float:
    """Return pi, the seconds of one flop of the vendor's product of this problem."""
    rate = calibration.require_rate(problem.dtype)
    slower = 1 + rate.fill / (problem.m * problem.n) + rate.pipe / problem.k
    return slower / rate.flops


def alpha_over_pi(calibration: Calibration, problem: Problem) -> float:
    """Return alpha/pi for Equation 2; a complex multiply-add counts as the two flops of Equation 2."""
    one = pi_seconds(calibration, problem) * problem.element_type.flops / 2
    return alpha_seconds(calibration, problem.itemsize) / one


def hasa_plan(depth: int) -> Plan:
    """Return the plan with `depth` levels of HASA (Table 2) above the vendor's product."""
    return Plan.parse(" > ".join(["hasa"] * depth + ["vendor"]))


# The recursion point of HASA's levels (22 passes over blocks) divided by the recursion point of Winograd's variant (15
# passes), by Equation 3.
HASA_POINT_RATIO = recursion_point(1.0, STRASSEN_WORK) / recursion_point(1.0, WINOGRAD_WORK)


@dataclass(frozen=True)
class HasaThresholds:
    """The thresholds of HASA's rule: alpha/pi and epsilon for Equation 2, and the recursion point of squares.

    If `square_point` is None, Equation 2 also decides for squares.
    """

    ratio: AlphaPiRatio
    epsilon: float = 0.0
    square_point: float | None = None


def calibrated_thresholds(calibration: Calibration, dtype: str) -> HasaThresholds:
    """Return the thresholds of a device without a tuning: alpha/pi for each shape follows from the calibration."""

    def alpha_over_pi_of_product(m: int, k: int, n: int) -> float:
        return alpha_over_pi(calibration, Problem(m, k, n, dtype))

    return HasaThresholds(alpha_over_pi_of_product)


def hasa_depth(shape: Shape, thresholds: HasaThresholds) -> int:
    """Return the number of levels of HASA: by the recursion point for a square, else by Equation 2."""
    if thresholds.square_point is not None and len(set(shape)) == 1:
        return len(levels_above_recursion_point(shape, thresholds.square_point))
    return len(recursion_levels(shape, thresholds.ratio, epsilon=thresholds.epsilon))


def choose_hasa_plan(problem: Problem, thresholds: HasaThresholds, limits: Limits, on_cpu: bool) -> Plan:
    """Return the plan with as many levels as `hasa_depth` returns, or with fewer levels to respect the limits."""
    if 0 in problem.size or problem.writes_triangle:
        return VENDOR
    for depth in range(hasa_depth(problem.size, thresholds), 0, -1):
        plan = hasa_plan(depth)
        allowed = limits.allows_plan(plan, expected_error_growth(plan, problem.dtype, on_cpu))
        if allowed and estimated_workspace(plan, problem) <= limits.workspace:
            return plan
    return VENDOR
