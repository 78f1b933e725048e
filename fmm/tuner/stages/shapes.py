"""The shapes (m, k, n) that a tuning measures: shapes for the fit, held-out shapes, and squares for the search."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator

from fmm.problem import Problem
from fmm.tuner.devices.device import Effort, TunableDevice

Size = tuple[int, int, int]


# The largest side of a tuning is chosen so that each round has time for this number of vendor products of that side.
LARGEST_PRODUCTS_PER_BUDGET = 22
SIDE_STEP = 128  # the largest affordable side is a multiple of this number
LADDER_SIDES = [
    *range(1024, 4096, 512),
    *range(4096, 8192, 1024),
    *range(8192, 16384, 2048),
    *range(16384, 65537, 8192),
]


def largest_side_within_seconds(problem: Problem, seconds: float, device: TunableDevice, effort: Effort) -> int:
    """Return the largest side for which the effort has time, extrapolated from the time of a smaller product."""
    target = effort.seconds / (LARGEST_PRODUCTS_PER_BUDGET * effort.rounds)
    side = (problem.m * problem.k * problem.n * target / seconds) ** (1 / 3)
    # side of the largest square product that fits in memory
    memory = math.sqrt(device.memory_bytes / (6 * problem.itemsize))
    return max(int(min(side, memory)) // SIDE_STEP * SIDE_STEP, 2 * SIDE_STEP)


# Sides of the fitted shapes, first of squares, then of oblong products (m, k, n), divided by the side of the largest
# square that the tuning has time to measure.
SQUARE_SHARES = (1, 3 / 4, 1 / 2, 3 / 8, 1 / 4, 3 / 16, 1 / 8, 1 / 16)
OBLONG_SHARES = ((1, 1 / 16, 1), (1, 1 / 4, 1), (1 / 2, 1, 1 / 2), (1, 1 / 2, 1 / 4), (1 / 4, 1 / 2, 1), (1 / 8, 1, 1))
# Numbers that are added to the sides (m, k, n) of the oblong products, since few products in practice have round sides.
# Odd offsets align the rows of 16-bit types to only 2 bytes, and offsets of 2 or 6 align the rows to only 4 bytes.
OBLONG_OFFSETS = ((0, 0, 0), (37, 37, 37), (6, 6, 6), (0, 37, 0), (0, 0, 2), (37, 37, 37))


def probe_shapes(side: int) -> Iterator[Size]:
    """Yield the fitted shapes: squares, the largest first, then oblong shapes."""
    for share in SQUARE_SHARES:
        yield rounded_side(share * side), rounded_side(share * side), rounded_side(share * side)
    for beyond, shares in zip(OBLONG_OFFSETS, OBLONG_SHARES, strict=True):
        m, k, n = (rounded_side(share * side) + more for share, more in zip(shares, beyond, strict=True))
        yield m, k, n


def rounded_side(side: float) -> int:
    """Return the side rounded down to a multiple of 32, at least 32."""
    return max(int(side) // 32 * 32, 32)


def random_probe_shapes(side: int, effort: Effort, share: float, seed: int) -> Iterator[Size]:
    """Yield random shapes with log-uniform sides; timing them takes `share` times the tuning's planned time.

    The sides of every second shape are multiples of 32, since in practice sides are often aligned.
    """
    rng = random.Random(seed)
    # `cost` estimates the time of one shape, with about three plans and one warm-up each, as a fraction of the planned
    # time. If sides differ by up to a factor of 4, the average product takes 10 % of the time of the largest product.
    cost = 0.3 * (4 / effort.spread) ** 1.5 * (effort.rounds + 1) / (LARGEST_PRODUCTS_PER_BUDGET * effort.rounds)
    top = side * min(0.9, (share / (effort.held_out * cost)) ** (1 / 3))
    for i in range(effort.held_out):
        m, k, n = (int(math.exp(rng.uniform(math.log(top / effort.spread), math.log(top)))) for _ in range(3))
        yield (m, k, n) if i % 2 else (rounded_side(m), rounded_side(k), rounded_side(n))


# The crossovers are checked on one large square and on several smaller squares. The side of the large square is 0.8
# times, and the sides of the smaller squares are at most 0.55 times the side of the largest square that the tuning has
# time to measure. The sides are limited because three plans and the vendor's product are timed on each shape.
LARGEST_CROSSOVER_SIDE_SHARE, CROSSOVER_SIDE_SHARE = 0.8, 0.55
# Sides (m, k, n) of an oblong shape that checks the crossovers, divided by 0.55 times the side of the largest square
# that the tuning has time to measure.
CROSSOVER_OBLONG_SHARES = (1.0, 0.625, 1.25)
CROSSOVER_OFFSET = 16  # added to sides that are multiples of 32, so that no other stage measures the same squares


def crossover_shapes(side: int, crossovers: Iterable[float], count: int) -> list[Size]:
    """Return `count` shapes on which crossovers are checked: a large square, an oblong shape, squares near crossovers.

    The sides of the first two shapes are fixed fractions of `side`, the largest side that the tuning has time for.
    Smaller squares are added until there are `count` shapes.
    """
    largest = CROSSOVER_SIDE_SHARE * side
    around = [x * crossover for x in (1.1, 0.9) for crossover in crossovers]
    sides = [x for x in around if 2 * SIDE_STEP <= x <= largest] + [largest * 0.94**i for i in range(2 * count)]
    scaled = [(LARGEST_CROSSOVER_SIDE_SHARE * side,) * 3, tuple(share * largest for share in CROSSOVER_OBLONG_SHARES)]
    found: list[Size] = []
    for m, k, n in [*scaled, *((x, x, x) for x in sides)]:
        found.append(tuple(rounded_side(x) + CROSSOVER_OFFSET for x in (m, k, n)))  # type: ignore[arg-type]
    return list(dict.fromkeys(found))[:count]


def square_ladder(side: int, stride: int = 1) -> list[Size]:
    """Return the square shapes with sides of LADDER_SIDES from side / 8 to `side`, the largest first."""
    return [(x, x, x) for x in reversed(LADDER_SIDES) if side / 8 <= x <= side][::stride]


def squares_below_ladder(side: int, stride: int = 1) -> list[Size]:
    """Return the square shapes with sides of LADDER_SIDES below side / 8, the largest first."""
    return [(x, x, x) for x in reversed(LADDER_SIDES) if x < side / 8][::stride]
