"""By how much a plan must be predicted to win before it is chosen: by more, the less is known of its time."""

from __future__ import annotations

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choosable import uses_on_diagonal
from fmm.problem import Problem

# What is added to the margin where C has few tiles: DOUBT divided by their number, so that a hundred tiles ask for a
# hundredth of what one tile does. The formula does not know how many tiles are left for a last wave that does not fill
# the device. On an H200, which computes 132 tiles at a time, predicted speedups are off by 8 to 15 % where C has fewer
# than 800 tiles, and by 4 % from 1600 on; the side of the leaf products, of which a batch has many, makes no
# difference.
DOUBT = 45.0
# Of complex types tiles of so many rows and columns are counted, at least: those of the datasheet, by which this was
# settled for them. A fit can find smaller ones, and then that C has four times as many, though no more of them are left
# for the last wave. (Complex128 on an H100, by a tuning of 30 s: 368 x 19344 x 1120 was predicted to take 0.72 of the
# vendor's time by `3m.batched > vendor`, and took 1.33; of 220 shapes 16 took longer than the vendor, 6 do with this.)
COUNTED = 128.0
# This share of it for types of which the vendor's rounds are known (`Rate.sms`): there what is given away where a plan
# does win counts as much. (On 111 shapes of an H200 in float32 without emulation fewer choices are poor by it.)
ROUNDS_KNOWN = 0.45
# What is added for cuts of a product that is its own adjoint on a GPU: the vendor's own half is faster beside its whole
# product, and the many products below the diagonal are slower, than the model thinks. (Float64 on an H200, as it is:
# 0.93 and 0.92 of the vendor's time were predicted at 5048 x 2716 and 6244 x 4360, and 1.09 and 1.08 measured; at 8192
# 0.87 and 0.96.)
HALF_DOUBT = 0.08
# Not where blocks on the diagonal are by our own tiles that read turned copies, whose time is known. (Float32 on an
# H200: of the vendor's time 0.91, 0.79 and 0.69 are predicted at 8192, 16384 and 32768; 0.91, 0.80 and 0.69 measured.)
# For plans that only copy operands to aligned rows: THIN divided by the shortest side is added. The formula does not
# know how slow the vendor is on thin products whose rows are not aligned. (TF32 on an H200: of 37 such plans, two, with
# sides of 201 and 221, were 9 and 3 % slower than the vendor where 16 and 19 % less time was predicted.)
THIN = 12.8
# For plans that multiply other numbers and cut no sides, this share of what few tiles add. (Complex128 on an H200: 0.82
# and 0.86 of the vendor's time were predicted where 272 and 318 rows meet a long inner side, and 1.12 and 1.02
# measured.)
OTHER_NUMBERS = 0.5


def needed_margin(plan: Plan, problem: Problem, calibration: Calibration) -> float:
    """By what share of the vendor's time the plan must be predicted to win.

    Larger where the products are not the vendor's, whose time is known best. Our own tiles alone, with no level above
    them, need no margin: they have no sums that the model could be wrong about, and where they are expected to take as
    long as the vendor they are as good a choice.
    """
    leaf = plan.leaf_use.leaf
    least = calibration.tiled_margin if plan.timed_by_tiles or leaf.time.rate else calibration.margin
    tiles_alone = not plan.levels and (plan.timed_by_tiles or leaf.candidacy.longest > 0)
    cuts_a_half = problem.halved and bool(plan.levels) and calibration.batches
    of_cuts = HALF_DOUBT if cuts_a_half and not any(use.order for use in uses_on_diagonal(plan)) else 0.0
    return (0.0 if tiles_alone else least) + of_cuts + _doubt(plan, problem, calibration)


def _doubt(plan: Plan, problem: Problem, calibration: Calibration) -> float:
    """What is added where C has few tiles, or is thin: the formula is made for large products."""
    tile, shortest = calibration.rate(problem.dtype).tile, min(problem.size)
    if tile <= 1 or not shortest or plan == VENDOR or plan.leaf_use.leaf.candidacy.longest:
        return 0.0
    cuts_sides = plan.splits or problem.halved
    other_numbers = plan.leaf_type(problem.dtype) != problem.dtype
    share = 1.0 if cuts_sides else OTHER_NUMBERS if other_numbers else 0.0
    return share * few_tiles_doubt(problem, calibration) if share else THIN / shortest


def few_tiles_doubt(problem: Problem, calibration: Calibration) -> float:
    """What is added where C has few tiles, the more the fewer. Complex numbers take the room of two real ones, and of
    one half only half of the tiles are computed."""
    rate, entries = calibration.rate(problem.dtype), float(problem.m * problem.n)
    entries *= (1 + problem.type.is_complex) / (1 + problem.halved)
    share, side = ROUNDS_KNOWN if rate.sms else 1.0, max(rate.tile, COUNTED * problem.type.is_complex)
    return share * DOUBT * side**2 / entries if rate.tile > 1 and entries else 0.0
