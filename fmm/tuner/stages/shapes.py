"""The shapes that a tuning measures: for the fit, held out, and for the search."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from fmm.dtypes import FLOAT_TYPES
from fmm.problem import Problem
from fmm.tuner.devices.device import Device, Effort

Size = tuple[int, int, int]


# The largest side is chosen so that the planned seconds hold this number of the vendor's products for each round.
LARGEST_PER_BUDGET = 22
SIDE_STEP = 128  # sides of the ladder and the probe are multiples of this
LADDER_SIDES = [
    *range(1024, 4096, 512),
    *range(4096, 8192, 1024),
    *range(8192, 16384, 2048),
    *range(16384, 65537, 8192),
]


def largest_side(problem: Problem, seconds: float, device: Device, effort: Effort) -> int:
    """Return the largest side that the effort affords, from the seconds of a smaller product."""
    target = effort.seconds / (LARGEST_PER_BUDGET * effort.rounds)
    side = (problem.m * problem.k * problem.n * target / seconds) ** (1 / 3)
    memory = math.sqrt(device.memory / (6 * problem.itemsize))  # the side whose operands and workspace fit in memory
    return max(int(min(side, memory)) // SIDE_STEP * SIDE_STEP, 2 * SIDE_STEP)


# Shares of the largest side: squares of all sizes, then thin products.
SQUARE_SHARES = (1, 3 / 4, 1 / 2, 3 / 8, 1 / 4, 3 / 16, 1 / 8, 1 / 16)
OBLONG_SHARES = ((1, 1 / 16, 1), (1, 1 / 4, 1), (1 / 2, 1, 1 / 2), (1, 1 / 2, 1 / 4), (1 / 4, 1 / 2, 1), (1 / 8, 1, 1))
# Added to the sides of the oblong products, since few products in practice have round sides. Rows of 16-bit types are
# then aligned to 2 or 4 bytes: the rows of A alone in one product, the rows of B and C in another.
OBLONG_OFFSETS = ((0, 0, 0), (37, 37, 37), (6, 6, 6), (0, 37, 0), (0, 0, 2), (37, 37, 37))


def probe_shapes(side: int) -> Iterator[Size]:
    """Yield the shapes of the fit, the largest square first."""
    for share in SQUARE_SHARES:
        yield rounded_side(share * side), rounded_side(share * side), rounded_side(share * side)
    for beyond, shares in zip(OBLONG_OFFSETS, OBLONG_SHARES, strict=True):
        m, k, n = (rounded_side(share * side) + more for share, more in zip(shares, beyond, strict=True))
        yield m, k, n


def rounded_side(side: float) -> int:
    """Return the side rounded down to a multiple of 32, at least 32."""
    return max(int(side) // 32 * 32, 32)


def scattered_shapes(side: int, effort: Effort, share: float, seed: int) -> Iterator[Size]:
    """Yield random shapes, uniform in the logarithm of the side, that together take `share` of the planned seconds.

    Every second shape has round sides: random sides are rarely aligned, those of practice often are.
    """
    rng = random.Random(seed)
    # A shape takes about three runs with a warm-up each. With sides spread by four, a product takes 10 % of the time of
    # the largest one.
    cost = 0.3 * (4 / effort.spread) ** 1.5 * (effort.rounds + 1) / (LARGEST_PER_BUDGET * effort.rounds)
    top = side * min(0.9, (share / (effort.held_out * cost)) ** (1 / 3))
    for i in range(effort.held_out):
        m, k, n = (int(math.exp(rng.uniform(math.log(top / effort.spread), math.log(top)))) for _ in range(3))
        yield (m, k, n) if i % 2 else (rounded_side(m), rounded_side(k), rounded_side(n))


# The largest square around a crossover, and the other shapes, have at most these shares of the largest side that the
# effort affords: three plans and the vendor are timed on each.
LARGEST_CROSSOVER_SHARE, CROSSOVER_SHARE = 0.8, 0.55
CROSSOVER_OBLONG = (1.0, 0.625, 1.25)  # the sides of a rectangle as multiples of the side of a square
CROSSOVER_OFFSET = 16  # added to the sides: they are aligned, but no multiples of 32 as all other squares


def crossover_shapes(side: int, crossovers: Iterable[float], count: int) -> list[Size]:
    """Return `count` shapes around the crossovers of the levels: a large square, then a rectangle, then squares.

    Shorter squares fill the list if crossovers are beyond the largest side.
    """
    largest = CROSSOVER_SHARE * side
    around = [x * crossover for x in (1.1, 0.9) for crossover in crossovers]
    sides = [x for x in around if 2 * SIDE_STEP <= x <= largest] + [largest * 0.94**i for i in range(2 * count)]
    scaled = [(LARGEST_CROSSOVER_SHARE * side,) * 3, tuple(share * largest for share in CROSSOVER_OBLONG)]
    found: list[Size] = []
    for m, k, n in [*scaled, *((x, x, x) for x in sides)]:
        found.append(tuple(rounded_side(x) + CROSSOVER_OFFSET for x in (m, k, n)))  # type: ignore[arg-type]
    return list(dict.fromkeys(found))[:count]


def square_ladder(side: int, stride: int = 1) -> list[Size]:
    """Return the squares of the ladder from an eighth of a side up to the side, the largest first."""
    return [(x, x, x) for x in reversed(LADDER_SIDES) if side / 8 <= x <= side][::stride]


def squares_below(side: int, stride: int = 1) -> list[Size]:
    """Return the squares of the ladder below an eighth of a side, the largest first."""
    return [(x, x, x) for x in reversed(LADDER_SIDES) if x < side / 8][::stride]


class ShapesError(ValueError):
    """A shapes file that cannot be read."""


def read_shapes(path: Path, dtype: str) -> list[Size]:
    """Return the shapes of a file for a type: lines of M K N, or M K N TYPE; # begins a comment."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ShapesError(f"cannot read {path}: {error}") from None
    found: list[Size] = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            m, k, n = (int(word) for word in words[:3])
            if min(m, k, n) < 1 or len(words) > 4 or (len(words) == 4 and words[3] not in FLOAT_TYPES):
                raise ValueError
        except ValueError:
            valid = f"M K N, three whole numbers of 1 or more, optionally a type: {', '.join(FLOAT_TYPES)}"
            raise ShapesError(f"{path}, line {number}: {line.strip()[:60]!r}; a line is {valid}") from None
        if len(words) == 3 or words[3] == dtype:
            found.append((m, k, n))
    return list(dict.fromkeys(found))
