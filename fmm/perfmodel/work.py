"""Count the work of a plan on a problem; predict.py turns the counts into seconds.

`estimated_work` takes microseconds and adds up the estimates of the levels. An estimate is the number of elements that
a level's sums move and hold if all blocks of the level have equal size. `counted_work` takes milliseconds and counts
the plan's steps (fmm.perfmodel.cost). The fractions of traffic in `PlanWork` are estimates in the results of both
functions. `estimated_workspace` estimates the bytes of a plan's temporaries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

from fmm.kernels.cuda.products.kernel_sizes import ALL_STRATEGIES, FLOAT64_SIZES, FUSED_SIZES, H200_STRATEGIES
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.leaf import parse_leaf
from fmm.kernels.plans.level import Level
from fmm.kernels.plans.lower import LevelWorkEstimate, Sides, lower_level, require_level_with_steps
from fmm.kernels.plans.memory_layout import ALIGN_BYTES
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.steps import Product, ProductBatch
from fmm.kernels.plans.sums import Mirror, Sum
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.cost import cost
from fmm.problem import Problem, Shape

# Equal leaf products: m, k, n, the number of equal products, and the number of products that start together.
LeafProducts = tuple[float, float, float, float, float]


class TriangleProducts(NamedTuple):
    """Several equal self-adjoint leaf products C = A A^T; the leaf computes one triangle of each C."""

    rows: float  # rows of A
    k: float  # columns of A
    number: float  # number of equal products
    together: float  # number of products that start together as a batch
    leaf: str  # name of the leaf with its options, as in a plan
    loose: bool  # True if the leaf may write any values to the other triangle


class LeafTiles(NamedTuple):
    """The tiles in which the tiled kernel computes leaf products, and the average number of blocks in each operand."""

    height: int  # rows of C in a tile
    width: int  # columns of C in a tile
    left: float = 1.0  # average number of blocks of A in the sum that is a product's left operand
    right: float = 1.0  # average number of blocks of B in the sum that is a product's right operand
    dest: float = 1.0  # average number of blocks of C to which a product is added
    together: float = 1.0  # number of products that may run at the same time

    def count_tiles(self, m: float, n: float) -> int:
        """Return the number of tiles that cover an m x n matrix."""
        return ceil(m / self.height) * ceil(n / self.width)


@dataclass(frozen=True)
class PlanWork:
    """The leaf products of a plan, the traffic and the passes of the plan's sums, and the alignment of rows."""

    leaves: tuple[LeafProducts, ...]
    traffic: float  # number of elements that the sums read and write
    passes: float  # number of passes of the sums over memory; each pass is a launch on a GPU
    # The fields from `sequential` to `parts` are fractions of the traffic, from 0 to 1.
    sequential: float = 0.0  # share of the traffic that sequential levels move
    ragged: float = 0.0  # share of the traffic on rows of A, B or C that do not begin on cache lines
    overlapped: float = 0.0  # share of the traffic that levels below an overlapped level move
    scalar: float = 0.0  # share of the traffic on rows of A, B or C that are moved one number at a time
    deep: float = 0.0  # share of the traffic that three levels in one pass move
    parts: float = 0.0  # share of the traffic of levels that replace complex products by real products
    # `unaligned`, `odd` and `copied` are fractions of the leaf products, from 0 to 1. `unaligned` counts leaf products
    # with all rows at multiples of 4 bytes, but not all rows at multiples of 16 bytes.
    unaligned: float = 0.0
    odd: float = 0.0  # share of leaf products on A, B or C with some rows that do not begin at multiples of 4 bytes
    # fraction of leaf products on aligned temporaries if A, B or C has unaligned rows; 0 if all rows are aligned
    copied: float = 0.0
    alone: bool = False  # True if A has unaligned rows and B has aligned rows
    tiles: LeafTiles | None = None  # tiles of the tiled kernel; None if another kernel multiplies
    triangles: tuple[TriangleProducts, ...] = ()
    # Fractions of the products in `triangles` with unaligned rows: all rows at multiples of 4 bytes
    # (`triangles_unaligned`), or some rows not even at multiples of 4 bytes (`triangles_odd`).
    triangles_unaligned: float = 0.0
    triangles_odd: float = 0.0

    @property
    def smallest_leaf_side(self) -> float:
        """The shortest side of all leaf products, in rows."""
        found = [min(leaf[:3]) for leaf in self.leaves]
        return min(found + [min(x.rows, x.k) for x in self.triangles]) if self.triangles else min(found)


# ---- entry points


def estimated_work(plan: Plan, problem: Problem) -> PlanWork:
    """Return the work of a plan for blocks of equal size; if a level has no estimate, the counts are exact."""
    return _gram_work(plan, problem) if problem.writes_triangle else _product_work(plan, problem)


def counted_work(plan: Plan, problem: Problem) -> PlanWork:
    """Return the work counted from the plan's steps; only the fractions of the traffic are estimated."""
    if problem.writes_triangle:
        return _gram_work(plan, problem)
    leaves, traffic, passes = _counts_from_steps(plan, problem)
    return replace(_product_work(plan, problem), leaves=leaves, traffic=traffic, passes=passes)


def estimated_workspace(plan: Plan, problem: Problem) -> float:
    """Return the estimated bytes of a plan's temporaries without the padding of rows."""
    if problem.writes_triangle:
        parts, itemsize = _gram_parts(plan, problem), problem.itemsize
        below = [
            estimated_workspace(inner, Problem(*size, problem.dtype, batch=together))
            for inner, size, together in parts.products
        ]
        for size, together, leaf, _ in parts.triangles:
            below.append(float(parse_leaf(leaf).leaf.workspace_bytes(itemsize, *size, together)))
        return parts.held * itemsize + max(below, default=0.0)
    estimates = _level_work_estimates(plan, problem)
    if estimates is None:
        return float(plan_workspace_bytes(plan, *problem.size, problem.itemsize))
    held, streams, itemsize = 0.0, 1, problem.itemsize
    for level, f in zip(plan.levels, estimates, strict=True):
        held += streams * sum(f.held) * itemsize
        streams, itemsize = max(streams, level.stream_count), level.itemsize_of_products(itemsize)
    m, k, n = (int(side) for side in (estimates[-1].sides if estimates else problem.size))
    scratch = plan.leaf_use.leaf.workspace_bytes(itemsize, m, k, n, int(_batch_size(plan)) * problem.batch)
    return held + streams * scratch


# ---- whole products: work from the estimates of levels, or counted from the steps

# Names of the fields of PlanWork that are fractions of the traffic.
TRAFFIC_SHARE_FIELDS = ("sequential", "ragged", "overlapped", "scalar", "deep", "parts")
# Names of the fields of PlanWork that are fractions of the leaf products.
PRODUCT_SHARE_FIELDS = ("unaligned", "odd", "copied")


def _product_work(plan: Plan, problem: Problem) -> PlanWork:
    estimates = _level_work_estimates(plan, problem)
    if estimates is None:
        steps = lower_level(plan, *problem.size)
        direct = steps.in_place_product_fraction if steps and len(plan.levels) == 1 else 0.0
        return PlanWork(*_counts_from_steps(plan, problem), **_row_alignment_work_fields(plan, problem, direct))
    moves, direct = _sum_traffic(plan, problem, estimates)
    m, k, n = estimates[-1].sides if estimates else problem.size
    leaves = ((float(m), float(k), float(n), moves.products * problem.batch, _batch_size(plan) * problem.batch),)
    whole = moves.traffic or 1.0
    shares = {name: getattr(moves, name) / whole for name in TRAFFIC_SHARE_FIELDS}
    return PlanWork(leaves, moves.traffic, moves.passes, **shares, **_row_alignment_work_fields(plan, problem, direct))


def _counts_from_steps(plan: Plan, problem: Problem) -> tuple[tuple[LeafProducts, ...], float, float]:
    """Return the leaf products and the numbers of moved elements and of passes of sums, counted from the steps."""
    counts = cost(plan, *problem.size, problem.itemsize, count_leaf_steps=False)
    leaves = tuple((*size, float(times), _batch_size(plan)) for size, times in counts.leaves)
    passes = counts.launches - sum(count / together for *_, count, together in leaves)
    return leaves, (counts.bytes_read + counts.bytes_written) / problem.itemsize, passes


def _batch_size(plan: Plan) -> float:
    """Return the number of leaf products that start as one batch."""
    if not plan.levels:
        return 1.0
    last = plan.levels[-1]
    if last.needs_fusing_leaf:
        return last.products / last.launch_count
    return float(last.products) if last.is_batched else 1.0


@dataclass
class _SumTraffic:
    """Running totals of a plan's sums, updated level by level from the outermost level inwards.

    Fields with names in TRAFFIC_SHARE_FIELDS are numbers of elements; `PlanWork` has the same fields as fractions of
    the traffic.
    """

    traffic: float = 0.0  # number of elements that sums read and write
    passes: float = 0.0  # number of passes of sums over memory
    sequential: float = 0.0  # number of elements moved by sequential levels
    ragged: float = 0.0  # number of elements moved on rows of A, B or C that do not begin on cache lines
    overlapped: float = 0.0  # number of elements moved below an overlapped level
    scalar: float = 0.0  # number of elements of A, B or C that are moved one at a time
    deep: float = 0.0  # number of elements moved by three levels in one pass
    parts: float = 0.0  # number of elements moved by levels that replace complex products by real products
    products: float = 1.0  # number of products below the levels counted so far


def _sum_traffic(plan: Plan, problem: Problem, estimates: Sequence[LevelWorkEstimate]) -> tuple[_SumTraffic, float]:
    """Return the counts of the sums, and the share of leaf products that read A or B or write C."""
    found, direct, below_overlapped = _SumTraffic(), 1.0, False
    itemsize = problem.itemsize
    for level, f in zip(plan.levels, estimates, strict=True):
        each = [found.products * x * itemsize / problem.itemsize for x in f.moved]
        moved = sum(each)
        if f.passes:
            direct = f.in_place if len(plan.levels) == 1 else 0.0
        if found.products == 1:  # only the first level's sums read A and B and write C
            found.ragged += _unaligned_elements(each, aligned_operands(problem, ALIGN_BYTES))
            found.scalar += _unaligned_elements(
                each, aligned_operands(problem, sum_access_bytes(f.products, problem.itemsize))
            )
        itemsize, before = level.itemsize_of_products(itemsize), itemsize
        found.traffic += moved
        found.sequential += moved if f.sequential else 0.0
        found.parts += moved if itemsize != before else 0.0
        found.deep += moved if f.products >= THREE_LEVEL_PRODUCT_COUNT else 0.0
        found.overlapped += moved if below_overlapped else 0.0
        below_overlapped = below_overlapped or level.stream_count > 1
        found.passes += found.products * f.passes
        found.products *= f.products
    return found, direct


def _level_work_estimates(plan: Plan, problem: Problem) -> tuple[LevelWorkEstimate, ...] | None:
    """Return the estimates of a plan's levels from the outermost level inwards; None if a level has no estimate."""
    return _nested_level_work_estimates(plan.levels, problem.size) if plan.levels else ()


@clear_on_registration
@lru_cache(maxsize=4096)  # cached: the work and the workspace of plans with the same levels need the same estimates
def _nested_level_work_estimates(levels: tuple[Level, ...], size: Shape) -> tuple[LevelWorkEstimate, ...] | None:
    found: list[LevelWorkEstimate] = []
    sides: Sides = (float(size[0]), float(size[1]), float(size[2]))
    for level in levels:
        if (estimate := cached_level_work(level, sides)) is None:
            return None
        found.append(estimate)
        sides = estimate.sides
    return tuple(found)


@clear_on_registration
@lru_cache(maxsize=4096)
def cached_level_work(level: Level, sides: Sides) -> LevelWorkEstimate | None:
    """Return the estimate of one level; cached, since the candidates for a problem have the same outer levels."""
    return require_level_with_steps(level).estimate_level_work(VENDOR, sides)


# ---- the alignment of rows

WIDE_ACCESS_BYTES = 16  # bytes of one access of a GPU's sums on rows that begin at multiples of 16 bytes
THREE_LEVEL_ACCESS_BYTES = 8  # bytes of one access of a GPU's sums for three levels in one pass
THREE_LEVEL_PRODUCT_COUNT = 7**3  # number of products of three levels of Strassen's algorithm in one pass
WORD_BYTES = 4  # alignment of rows in bytes; the vendor multiplies rows with less alignment by its slowest kernels


def are_rows_aligned(problem: Problem, unit: int) -> bool:
    """Return True if every row of A, B and C begins at a multiple of `unit` bytes."""
    return all(aligned_operands(problem, unit))


def aligned_operands(problem: Problem, unit: int) -> tuple[bool, bool, bool]:
    """Return for each of A, B and C: True if the length of a row in bytes is a multiple of `unit`."""
    b = problem.n * problem.itemsize % unit == 0
    return problem.k * problem.itemsize % unit == 0, b, b


def sum_access_bytes(products: float, itemsize: int) -> int:
    """Return the bytes that the sums of a level with `products` products move in one access on aligned rows.

    A GPU thread that sums three levels in one pass has registers for at most two numbers.
    """
    return WIDE_ACCESS_BYTES if products < THREE_LEVEL_PRODUCT_COUNT else min(2 * itemsize, THREE_LEVEL_ACCESS_BYTES)


def _unaligned_elements(moved: Sequence[float], aligned: Sequence[bool]) -> float:
    """Return the number of elements that are moved to and from the unaligned matrices among A, B and C."""
    return sum([x for x, is_aligned in zip(moved, aligned, strict=True) if not is_aligned])


def _vendor_row_alignment(itemsize: int) -> int:
    """Return the alignment in bytes that the vendor's fast kernels need for rows: at least two numbers.

    On an H200 in complex128, the ratio of measured to predicted time is 1.21 times as large for products with an odd
    number of columns.
    """
    return max(WIDE_ACCESS_BYTES, 2 * itemsize)


def _row_alignment_work_fields(plan: Plan, problem: Problem, direct: float) -> dict[str, Any]:
    """Return the fields of PlanWork that depend on the alignment of rows and on tiles.

    `direct` is the share of leaf products that read A or B or write C, and not only temporaries. A batch of products
    reads only temporaries, which have aligned rows.
    """
    vectors, words = (
        aligned_operands(problem, _vendor_row_alignment(problem.itemsize)),
        aligned_operands(problem, WORD_BYTES),
    )
    if plan.levels and all(level.is_complex_split for level in plan.levels):
        # Below a level such as `3m`, real products multiply matrices of real and imaginary parts with the complex
        # product's sides and no padding.
        parts, direct = replace(problem, dtype=plan.leaf_type(problem.dtype)), 1.0
        vectors = aligned_operands(parts, _vendor_row_alignment(parts.itemsize))
    elif plan.is_batched:
        direct = 0.0
    unaligned, odd = float(False in vectors), float(False in words)
    return {
        "unaligned": direct * (unaligned - odd),
        "odd": direct * odd,
        "copied": (1 - direct) * unaligned,
        "alone": vectors[1] and not vectors[0],
        "tiles": _leaf_tiles(plan, plan.leaf_type(problem.dtype)),
    }


@clear_on_registration
@lru_cache(maxsize=1024)
def _leaf_tiles(plan: Plan, dtype: str) -> LeafTiles | None:
    """Return the tile sizes and counts with which the tiled kernel computes the plan's leaf products.

    The result is None if the vendor multiplies, or if the tiled kernel takes about the vendor's time in this type.
    """
    leaf = plan.leaf_use.leaf
    if not plan.uses_tile_model or dtype in set(leaf.types) - set(leaf.types_with_sums):
        return None
    products = plan.levels[-1].fused_products if plan.levels else None
    scheme = products.scheme if products else None
    usual = FLOAT64_SIZES[0] if dtype == "float64" else FUSED_SIZES["float32"] if scheme else H200_STRATEGIES[0]
    sizes = next((s for s in ALL_STRATEGIES if s.name.lower() in plan.leaf_use.options), usual)
    if scheme is None:
        return LeafTiles(sizes.m_s, sizes.n_s)
    left, right, dest = (sum(c != 0 for row in x for c in row) / scheme.rank for x in (scheme.u, scheme.v, scheme.w))
    return LeafTiles(sizes.m_s, sizes.n_s, left, right, dest, scheme.rank)


# ---- self-adjoint products: levels cut them into triangles on the diagonal and whole products below the diagonal


@clear_on_registration
@lru_cache(maxsize=4096)
def _gram_work(plan: Plan, problem: Problem) -> PlanWork:
    """Return the work of a plan for a self-adjoint product; shares are averages over the parts, weighted by work."""
    parts = _gram_parts(plan, problem)
    products = [
        (float(count), float(together), _product_work(inner, Problem(*size, problem.dtype)))
        for (inner, size, together), count in parts.products.items()
    ]
    leaves = [(m, k, n, c * times, max(b, t)) for c, t, w in products for m, k, n, times, b in w.leaves]
    triangles = [
        TriangleProducts(float(m), float(k), float(c * problem.batch), float(t * problem.batch), leaf, loose)
        for ((m, k, _), t, leaf, loose), c in parts.triangles.items()
    ]
    traffic = parts.traffic + sum(c * w.traffic for c, _, w in products)
    passes = parts.passes + sum(c * w.passes for c, _, w in products)
    rows = _row_alignment_work_fields(VENDOR, problem, 1.0)
    multiply_adds = [sum(m * k * n * times for m, k, n, times, _ in w.leaves) for *_, w in products]
    by_products = [(c * adds, w) for (c, _, w), adds in zip(products, multiply_adds, strict=True)]
    return PlanWork(
        tuple(leaves),
        traffic,
        passes,
        alone=any(w.alone for *_, w in products),
        tiles=next((w.tiles for *_, w in products if w.tiles), None),
        triangles=tuple(triangles),
        triangles_unaligned=rows["unaligned"],
        triangles_odd=rows["odd"],
        **_weighted_averages(TRAFFIC_SHARE_FIELDS, [(c * w.traffic, w) for c, _, w in products], traffic),
        **_weighted_averages(PRODUCT_SHARE_FIELDS, by_products, 0.0),
    )


def _weighted_averages(
    names: Sequence[str], parts: Sequence[tuple[float, PlanWork]], min_divisor: float
) -> dict[str, float]:
    """Return, for each field in `names`, its weighted average over the parts, divided by at least `min_divisor`."""
    whole = max(sum(weight for weight, _ in parts), min_divisor) or 1.0
    return {name: sum(weight * getattr(work, name) for weight, work in parts) / whole for name in names}


class _GramWorkParts:
    """The parts of a self-adjoint product below its levels: whole products by plans, triangles by leaves, and sums."""

    def __init__(self) -> None:
        self.traffic = self.passes = 0.0
        self.held = 0.0  # largest number of elements in temporaries at a time, inner levels included
        # (plan, size, number of products in a batch) -> number of products
        self.products: Counter[tuple[Plan, Shape, int]] = Counter()
        # (size, number of products in a batch, leaf, True if the leaf may overwrite the other triangle) -> number of
        # products
        self.triangles: Counter[tuple[Shape, int, str, bool]] = Counter()

    def add_steps_of_product(self, plan: Plan, size: Shape, params: GemmParams, together: int = 1) -> None:
        """Add the products, triangles and sums into which the plan cuts a product.

        `together` products of this size start as one batch.
        """
        steps = lower_level(plan, *size, *params) if params.op != "product" else None
        if params.op == "product":
            self.products[plan, size, 1 if plan.levels else together] += 1
        elif steps is None:
            self.triangles[size, together, plan.leaf, params.fill == "loose"] += 1
        else:
            own = peak = self.held + sum(rows * cols for _, rows, cols in steps.temporaries)
            mirrored_by_kernel = not plan.levels and plan.leaf_use.leaf.mirrors
            for step in steps.steps[: 1 if mirrored_by_kernel else None]:
                self.held = own
                if isinstance(step, Product):
                    self.add_steps_of_product(step.plan, step.size, step.params)
                elif isinstance(step, ProductBatch):
                    for product in step.products:
                        self.add_steps_of_product(product.plan, product.size, product.params, len(step.products))
                else:
                    self.passes += 1
                    self.traffic += _moved_elements(step)
                peak = max(peak, self.held)
            self.held = peak


def _moved_elements(step: object) -> float:
    """Return the number of elements that a sum or a mirror copy moves; a mirror copy reads and writes half of C."""
    if isinstance(step, Sum):
        return float(sum(place.rows * place.cols for place in (*step.reads, *step.writes)))
    assert isinstance(step, Mirror)
    return float(step.dest.rows**2)


@clear_on_registration
@lru_cache(maxsize=4096)
def _gram_parts(plan: Plan, problem: Problem) -> _GramWorkParts:
    """Return the parts into which a plan cuts a self-adjoint product; cached for the plan's work and workspace."""
    found = _GramWorkParts()
    found.add_steps_of_product(plan, problem.size, GemmParams(1, 0, problem.op, problem.fill))
    return found
