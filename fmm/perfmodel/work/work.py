"""The work of a plan on a problem, as a value: its leaf products, the traffic of its sums, and how rows begin."""

from __future__ import annotations

from dataclasses import dataclass

from fmm.perfmodel.work.tiles import Tiles

Leaf = tuple[float, float, float, float, float]  # m, k, n, how many, how many of them start together

# Rows, k, how many, how many of them start together; by which leaf, and may it leave anything in the other half?
Half = tuple[float, float, float, float, str, bool]


@dataclass(frozen=True)
class Work:
    """What the formula needs of a plan: its leaf products, the traffic of its sums, and how many passes those are."""

    leaves: tuple[Leaf, ...]
    traffic: float  # elements
    passes: float
    # Which share of the traffic is moved ...
    sequential: float = 0.0  # by sequential levels
    ragged: float = 0.0  # by the first level, to or from rows of A, B or C that do not begin on cache lines
    overlapped: float = 0.0  # below an overlapped level
    scalar: float = 0.0  # by the first level, to or from rows that it must read and write one number at a time
    deep: float = 0.0  # by three levels in one pass
    parts: float = 0.0  # by levels that have complex products done in real ones
    # Which share of the leaf products reads or writes, in A, B or C themselves, rows that begin ...
    unaligned: float = 0.0  # at multiples of 4 bytes, but not all at multiples of 16
    odd: float = 0.0  # not even all at multiples of 4
    copied: float = 0.0  # ... or takes aligned copies of either kind instead
    alone: bool = False  # are A's rows the only ones of these kinds?
    tiles: Tiles | None = None  # of leaf products by the tiled kernel
    halves: tuple[Half, ...] = ()  # leaf products that are their own adjoints, of which half is computed
    # These read A, B and C themselves: shares whose rows do not begin as wide accesses want, and not even at words.
    halves_unaligned: float = 0.0
    halves_odd: float = 0.0

    @property
    def smallest(self) -> float:
        """The shortest side of the leaf products."""
        found = [min(leaf[:3]) for leaf in self.leaves]
        return min(found + [min(half[:2]) for half in self.halves]) if self.halves else min(found)
