"""Compute the error of a plan before the plan runs: a bound in the maximum norm, and the expected growth on average.

The bound on the error is f u |A| |B| + O(u^2), where u is the unit roundoff and |X| the largest absolute entry of X. A
walk over the sums that a plan runs computes the factor f from the rounding, the order and the sharing of additions. The
walk is Brent's analysis, extended to any plan. The bound says nothing about the average error. Winograd's variant, with
the factor 18 for each level, is worse than Strassen's algorithm (12) by every measure of this module but one: on
numbers of one sign it is better (`Scheme.same_sign_error_growth`). The variant `dps` has the factor 13, but is better
than Strassen's algorithm by two other measures. On independent random data, the error grows 1.47 times with each level
of `dps`, and 1.73 times with each level of Strassen's algorithm. In the Frobenius norm, the factors by which a level
increases the error bound are 12.2 for `dps` and 14.8 for Strassen's algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import frexp, hypot, prod, sqrt
from typing import Final, NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import AdditionProgram
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.cpu.sum_schedule import schedule_elementwise_calls
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelSteps
from fmm.kernels.plans.sums import Mirror, Place, PlacePart, Sum
from fmm.kernels.registry import clear_on_registration
from fmm.problem import Fill, Operation


def classical_error_bound(n: int) -> int:
    """Return n^2, the factor f in the error bound f u |A| |B| of the classical n x n product."""
    return n * n


def plan_schemes(plan: Plan) -> tuple[Scheme, ...]:
    """Return the schemes of a plan's levels, outermost first; a composed scheme is replaced by its factors."""
    schemes = [scheme for level in plan.levels if (scheme := level.bilinear) is not None]
    return tuple(factor for s in schemes for factor in (s.factors or (s,)))


# ---- the bound f of a plan, by a walk over its steps

PlaceKey = tuple[str, int, int, PlacePart | None]


@dataclass(frozen=True, slots=True)
class _SymbolicBlock:
    """The value of a block: an exact linear combination of input blocks and products, and the rounding error.

    The rounding error is in units of u |A| |B|.
    """

    terms: Mapping[object, float]
    rounding: float = 0.0


class _ErrorWalk:
    """Arithmetic on symbolic blocks, which are linear combinations of atoms (input blocks and products).

    Each atom has a bound on its magnitude and a bound on its error.
    """

    def __init__(self) -> None:
        self.atoms: dict[object, tuple[float, float]] = {}
        self.held: dict[PlaceKey, _SymbolicBlock] = {}

    def add_block_with_bounds(self, key: object, size: float = 1.0, error: float = 0.0) -> _SymbolicBlock:
        self.atoms[key] = (size, error)
        return _SymbolicBlock({key: 1.0})

    def magnitude_bound(self, value: _SymbolicBlock) -> float:
        return sum(abs(c) * self.atoms[key][0] for key, c in value.terms.items())

    def accumulated_error(self, value: _SymbolicBlock) -> float:
        return sum(abs(c) * self.atoms[key][1] for key, c in value.terms.items()) + value.rounding

    def add_values(self, x: _SymbolicBlock, y: _SymbolicBlock, sign: float = 1.0) -> _SymbolicBlock:
        """Return the value x + sign * y with the rounding of the sum."""
        terms = dict(x.terms)
        for key, c in y.terms.items():
            terms[key] = terms.get(key, 0.0) + sign * c
        exact = _SymbolicBlock({key: c for key, c in terms.items() if c}, x.rounding + y.rounding)
        return _SymbolicBlock(exact.terms, exact.rounding + self.magnitude_bound(exact))

    def scale_value(self, x: _SymbolicBlock, factor: float) -> _SymbolicBlock:
        """Return the value factor * x, rounded unless the factor is a power of two."""
        terms = {key: c * factor for key, c in x.terms.items()}
        exact = _SymbolicBlock(terms, x.rounding * abs(factor))
        return (
            exact
            if abs(frexp(factor)[0]) == 0.5
            else _SymbolicBlock(terms, exact.rounding + self.magnitude_bound(exact))
        )

    def multiply_values(self, left: _SymbolicBlock, right: _SymbolicBlock, k: float, inner: float) -> _SymbolicBlock:
        """Return the product of two values over k terms, computed with the factor f = `inner` in its error bound."""
        x, y = self.magnitude_bound(left), self.magnitude_bound(right)
        error = inner * x * y + k * (left.rounding * y + x * right.rounding)
        return self.add_block_with_bounds(("product", len(self.atoms)), k * x * y, error)

    def run_sum_program(
        self, program: AdditionProgram, values: Sequence[_SymbolicBlock], aliases: tuple[tuple[int, int], ...]
    ) -> list[_SymbolicBlock]:
        """Return the outputs of a sum program, added up in the same order as in the NumPy backend."""
        count = len(program.outputs)
        plan = schedule_elementwise_calls(program, (True,) * program.inputs, (True,) * count, aliases)
        slots = [*values, *[_SymbolicBlock({})] * (count + plan.scratch)]
        for call in plan.calls:
            first = slots[call.first]
            if call.op in ("add", "subtract"):
                slots[call.dest] = self.add_values(first, slots[call.second], 1.0 if call.op == "add" else -1.0)
            elif call.op == "zero":
                slots[call.dest] = _SymbolicBlock({})
            else:
                factor = {"copy": 1.0, "negate": -1.0}.get(call.op, complex(call.factor).real)
                slots[call.dest] = self.scale_value(first, factor)
        return slots[len(values) : len(values) + count]

    def run_level_steps(self, steps: LevelSteps) -> float:
        """Return the largest error of any block of C after a walk over a level's steps."""
        for step in steps.flattened_steps:
            if isinstance(step, Sum):
                written = self.run_sum_program(
                    step.program, [self.read_block(p) for p in step.reads], step.in_place_pairs
                )
                for place, value in zip(step.writes, written, strict=True):
                    self.held[place.origin] = value
            elif isinstance(step, Mirror):
                self.held[step.dest.origin] = self.read_block(step.source)
            else:
                inner = error_bound(step.plan, *step.size, step.params.op, step.params.fill)
                value = self.multiply_values(
                    self.read_block(step.left), self.read_block(step.right), step.left.cols, inner
                )
                origin = step.dest.origin
                self.held[origin] = self.add_values(self.held[origin], value) if step.reads_dest else value
        errors: dict[tuple[int, int], float] = {}  # error of a block of C, of the real and the imaginary part together
        for (name, row, col, _), value in self.held.items():
            if name == "C":
                errors[row, col] = hypot(errors.get((row, col), 0.0), self.accumulated_error(value))
        return max(errors.values())

    def read_block(self, place: Place) -> _SymbolicBlock:
        """Return the block at a place; if the place covers several blocks, the block with the largest error."""
        place = place.untransposed_place
        if place.name in ("A", "B"):
            return self.add_block_with_bounds(place.origin)
        same = [
            (origin, value) for origin, value in self.held.items() if (origin[0], origin[3]) == (place.name, place.part)
        ]
        inside = [
            value
            for (_, row, col, _), value in same
            if 0 <= row - place.row < place.rows and 0 <= col - place.col < place.cols
        ]
        around = [value for (_, row, col, _), value in same if row <= place.row and col <= place.col]
        return max(inside or around, key=self.accumulated_error, default=_SymbolicBlock({}))


@clear_on_registration
@lru_cache(maxsize=4096)
def error_bound(plan: Plan, m: int, k: int, n: int, op: Operation = "product", fill: Fill = "full") -> float:
    """Return the factor f in the error bound f u |A| |B| of C = A B, computed by a plan with the NumPy backend.

    Blocks at a fringe count as whole blocks, so that f is too large rather than too small.
    """
    if min(m, k, n) < 0:
        raise ValueError(f"sizes must not be negative: m = {m}, k = {k}, n = {n}")
    if 0 in (m, k, n):
        return 0.0
    steps = lower_level(plan, m, k, n, 1, 0, op, fill)
    return float(classical_error_bound(k)) if steps is None else _ErrorWalk().run_level_steps(steps)


def scheme_error_bounds(scheme: Scheme, k: float, inner: float) -> list[float]:
    """Return the factors f in the error bounds of C's blocks for one level of a scheme; products have f = `inner`."""
    walk, p = _ErrorWalk(), scheme.addition_programs
    lefts = walk.run_sum_program(p.left, [walk.add_block_with_bounds(("A", i)) for i in range(p.left.inputs)], ())
    rights = walk.run_sum_program(p.right, [walk.add_block_with_bounds(("B", i)) for i in range(p.right.inputs)], ())
    products = [walk.multiply_values(x, y, k, inner) for x, y in zip(lefts, rights, strict=True)]
    return [walk.accumulated_error(value) for value in walk.run_sum_program(p.join, products, ())]


# ---- the expected error growth


@clear_on_registration
@lru_cache(maxsize=4096)
def expected_error_growth(plan: Plan, dtype: str = "float64", in_pieces: bool = False) -> float:
    """Return the expected (root mean square) error of a plan as a multiple of the error of the vendor's product.

    The data are assumed to be random numbers of equal size, and the rounding errors independent. If numbers of one sign
    have a larger error growth, the result is the larger growth. Numbers of one sign have the larger growth for
    Strassen's levels on a CPU (Scheme.same_sign_error_growth), and for complex products from three real products. The
    growth does not depend on the sizes: the rows and columns of a fringe are counted as if they also had the larger
    error. In types that are summed up in their own precision, the growth is the product of the levels' growths
    (Scheme.error_growth). In types that are summed up in a wider type, the rounding inside products is small compared
    with the rounding of stored numbers.

    `in_pieces` is True if the vendor's product adds up a long sum in several partial sums, as BLAS does on a CPU. With
    partial sums the vendor's error grows slowly with k, so that the shorter products of a plan gain less accuracy. With
    OpenBLAS, three levels of Winograd's variant in float32 at n = 4096 have a measured error growth of 14.4, and an
    expected error growth of 19.7 if `in_pieces` is True, else 9.5.
    """
    if DTYPES[dtype].exact:
        return 1.0  # integer arithmetic is exact
    if DTYPES[dtype].sums_wider:
        return sqrt(_error_variance(plan, _variance_rounded_in_memory))
    if DTYPES[dtype].stored_as:
        return sqrt(_error_variance(plan, _variance_rounded_in_products))
    schemes = plan_schemes(plan)
    random = prod(s.error_growth_blocked_sums if in_pieces else s.error_growth for s in schemes)
    positive = prod(s.same_sign_error_growth_blocked if in_pieces else s.same_sign_error_growth for s in schemes)
    random *= prod(level.error_growth for level in plan.levels)
    positive *= prod(level.same_sign_error_growth for level in plan.levels)
    if in_pieces and DTYPES[dtype].is_complex and any(x.dtype_of_products(dtype) != dtype for x in plan.levels):
        random, positive = random * SHORTER_PIECES_GROWTH.random, positive * SHORTER_PIECES_GROWTH.positive
    return float(plan.leaf_use.leaf.relative_error * max(random, positive))


class _ErrorGrowthPair(NamedTuple):
    """The error growth on random numbers and on numbers of one sign."""

    random: float
    positive: float


# The factors by which a real product's error exceeds a complex product's error: BLAS adds up complex products in
# shorter partial sums. At k = 32 to 2048, a complex product from four real products has up to 1.6 times the vendor's
# error on random numbers. On positive numbers, a complex product from four real products has up to 2.3 times the
# vendor's error. A complex product from three real products has up to 5.9 times the vendor's error on positive numbers.
# Relative to the vendor's error, the errors on positive numbers are largest at k = 291, where a complex product adds up
# two partial sums and a real product has a single sum.
SHORTER_PIECES_GROWTH: Final = _ErrorGrowthPair(1.6, 2.7)


def is_error_measured(plan: Plan) -> bool:
    """Return True if the plan's expected error growth is the largest measured error, in the Frobenius norm.

    The errors of leaves that emulate were measured; the error of a bilinear level is a root mean square by the model.
    """
    return plan.leaf_use.leaf.emulates and not any(level.bilinear for level in plan.levels)


def _error_variance(plan: Plan, level: Callable[[_VarianceShares, float], float]) -> float:
    """Return the variance of a plan's error as a multiple of the vendor's variance, computed from the leaf outwards.

    `level` is a function of a scheme's _VarianceShares and of the variance of the level's products; it returns the
    level's variance.
    """
    variance = plan.leaf_use.leaf.relative_error**2
    for x in reversed(plan.levels):
        variance *= x.error_growth**2
        if (scheme := x.bilinear) is not None:
            variance = level(_variance_shares(scheme), variance)
    return max(variance, 1.0)


def _variance_rounded_in_products(shares: _VarianceShares, inner: float) -> float:
    """Return the variance of one level in TF32: products round operands; rounding of results is negligible."""
    return shares.all * inner


def _variance_rounded_in_memory(shares: _VarianceShares, inner: float) -> float:
    """Return the variance of one level in 16 bits, where the vendor rounds each result once, at the end.

    Each level rounds three times: the operands that are sums (once for any number of terms), the products, and C.
    """
    return shares.sums + shares.all * (inner + 2) - shares.plain_left - shares.plain_right


class _VarianceShares(NamedTuple):
    """The variance of C's relative error, averaged over its blocks, if each product has the variance 1.

    `plain_left` is the fraction of the variance that comes from products with a single block of A as left operand,
    which is not rounded. `plain_right` is the fraction of the variance that comes from products with a single block of
    B as right operand.
    """

    all: float
    plain_left: float
    plain_right: float
    sums: float  # the share of the blocks of C that are sums of several products


@lru_cache(maxsize=256)
def _variance_shares(scheme: Scheme) -> _VarianceShares:
    """Return the variance shares of a scheme; for a composed scheme, multiply the shares of its factors."""
    if scheme.factors:
        parts = [_variance_shares(f) for f in scheme.factors]
        every, left, right, _ = (prod(column) for column in zip(*parts, strict=True))
        return _VarianceShares(every, left, right, 1 - prod(1 - p.sums for p in parts))
    sizes = [[sum(float(c) ** 2 for c in column) for column in zip(*x, strict=True)] for x in (scheme.u, scheme.v)]
    terms = [nonzero_counts(zip(*x, strict=True)) for x in (scheme.u, scheme.v)]
    uses = [sum(float(c) ** 2 for c in column) for column in zip(*scheme.w, strict=True)]
    weights = [w * x * y / (len(scheme.w) * scheme.k) for w, x, y in zip(uses, *sizes, strict=True)]
    left, right = (sum(w for w, count in zip(weights, counts, strict=True) if count == 1) for counts in terms)
    return _VarianceShares(
        sum(weights), left, right, sum(count > 1 for count in nonzero_counts(scheme.w)) / len(scheme.w)
    )


def nonzero_counts(rows: Iterable[Iterable[Fraction | int]]) -> list[int]:
    """Return the number of nonzero coefficients in each row."""
    return [sum(1 for c in row if c) for row in rows]


# ---- the bound on the error of C's entries


def has_componentwise_bound(plan: Plan) -> bool:
    """Return True if the error of each entry of C is small relative to the same entry of |A| |B|, as the vendor's is.

    Plans that check entries have the componentwise bound: if the bound is not certain, the product is computed again.
    Plans that save products lack the componentwise bound: their errors are small relative to the largest entries only.
    """
    leaf = plan.leaf_use.leaf
    saves = leaf.saves_products or any(level.saves_products for level in plan.levels)
    return not saves and (leaf.checks_entries or not plan.uses_emulation)


def error_bound_text(plan: Plan, componentwise: bool = False) -> str:
    """Return the bound on the error of an entry of C in words."""
    leaf = plan.leaf_use.leaf
    if leaf.saves_products or any(level.saves_products for level in plan.levels):
        return "the error of an entry is small relative to the largest entries of A and of B"
    if not leaf.emulates:
        return "the error of an entry is small relative to the same entry of |A| |B|, as for the vendor"
    if componentwise and leaf.checks_entries:
        return "an entry's error is small relative to its entry of |A| |B|; if that is not certain, C is computed again"
    share = leaf.norm_bound
    return f"an entry's error is at most {share} times the norm of its row of A times the norm of its column of B"
