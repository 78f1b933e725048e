"""Which shapes a tuning measures: for the fit, held out from it, and tuned."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

from fmm.dtypes import FLOATS
from fmm.problem import Problem
from fmm.tuner.devices.device import Device, Effort

Size = tuple[int, int, int]


# The largest side is such that LARGEST of the vendor's products, times the effort's rounds, take the planned seconds.
LARGEST = 22
STEP = 128  # sides of the ladder and the probe are multiples of this
LADDER = [*range(1024, 4096, 512), *range(4096, 8192, 1024), *range(8192, 16384, 2048), *range(16384, 65537, 8192)]


def largest_side(problem: Problem, seconds: float, device: Device, effort: Effort) -> int:
    """The side of the largest product that the effort affords, from the seconds of a smaller one."""
    target = effort.seconds / (LARGEST * effort.rounds)
    side = (problem.m * problem.k * problem.n * target / seconds) ** (1 / 3)
    memory = math.sqrt(device.memory / (6 * problem.itemsize))  # operands, and a plan's workspace
    return max(int(min(side, memory)) // STEP * STEP, 2 * STEP)


# Shares of the largest side: squares of all sizes, then products that are thin in one way or another.
SQUARES = (1, 3 / 4, 1 / 2, 3 / 8, 1 / 4, 3 / 16, 1 / 8, 1 / 16)
OBLONGS = ((1, 1 / 16, 1), (1, 1 / 4, 1), (1 / 2, 1, 1 / 2), (1, 1 / 2, 1 / 4), (1 / 4, 1 / 2, 1), (1 / 8, 1, 1))
# Added to the sides of OBLONGS, since few products in practice have round sides. Rows of 16-bit types then begin at
# multiples of 2 or 4 bytes: in one product those of A alone, in another those of B and C.
BEYOND = ((0, 0, 0), (37, 37, 37), (6, 6, 6), (0, 37, 0), (0, 0, 2), (37, 37, 37))


def probe_shapes(side: int) -> Iterator[Size]:
    """The shapes of the fit, the largest square first."""
    for share in SQUARES:
        yield rounded_side(share * side), rounded_side(share * side), rounded_side(share * side)
    for beyond, shares in zip(BEYOND, OBLONGS, strict=True):
        m, k, n = (rounded_side(share * side) + more for share, more in zip(shares, beyond, strict=True))
        yield m, k, n


def rounded_side(side: float) -> int:
    """A side that is aligned however one looks at it."""
    return max(int(side) // 32 * 32, 32)


def scattered_shapes(side: int, effort: Effort, share: float, seed: int) -> Iterator[Size]:
    """Random shapes, their sides spread evenly by logarithm, cheap enough that all take `share` of the seconds.

    Every second one has round sides: random ones are aligned to nothing, those that people multiply often are.
    """
    rng = random.Random(seed)
    # A shape takes about three runs and a warm-up of each; with sides spread by four, a tenth of the time of the
    # largest product.
    cost = 0.3 * (4 / effort.spread) ** 1.5 * (effort.rounds + 1) / (LARGEST * effort.rounds)
    top = side * min(0.9, (share / (effort.held_out * cost)) ** (1 / 3))
    for i in range(effort.held_out):
        m, k, n = (int(math.exp(rng.uniform(math.log(top / effort.spread), math.log(top)))) for _ in range(3))
        yield (m, k, n) if i % 2 else (rounded_side(m), rounded_side(k), rounded_side(n))


def square_ladder(side: int, stride: int = 1) -> list[Size]:
    """The usual square products up to a side, the largest first."""
    return [(x, x, x) for x in reversed(LADDER) if side / 8 <= x <= side][::stride]


def squares_below(side: int, stride: int = 1) -> list[Size]:
    """The usual squares that are too small for that ladder."""
    return [(x, x, x) for x in reversed(LADDER) if x < side / 8][::stride]


class ShapesError(ValueError):
    """A shapes file that cannot be read."""


def read_shapes(path: Path, dtype: str) -> list[Size]:
    """The shapes of a file for a type: lines of M K N, or M K N TYPE; # begins a comment."""
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
            if min(m, k, n) < 1 or len(words) > 4 or (len(words) == 4 and words[3] not in FLOATS):
                raise ValueError
        except ValueError:
            valid = f"M K N, three whole numbers of 1 or more, then if you like a type: {', '.join(FLOATS)}"
            raise ShapesError(f"{path}, line {number}: {line.strip()[:60]!r}; a line is {valid}") from None
        if len(words) == 3 or words[3] == dtype:
            found.append((m, k, n))
    return list(dict.fromkeys(found))
