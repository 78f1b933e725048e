"""Launches of the tiled product's kernel: what one is told, how many thread blocks it has."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

from fmm.kernels.program import Program
from fmm.kernels.strategy import SUMMING, Strategy, best_for, strategy
from fmm.kernels.tile_source import Access, Along, Epilogue, Path, Target, TileKernel, Update, added

BLOCK_BYTES = 16  # of struct Block in cuda/tile.cuh
GROUP = 8  # rows of tiles that are done together
WIDE = 16  # bytes of an access of `vector`


class Piece(NamedTuple):
    """A block of A, B or C: where it begins in which base, in bytes, and its sizes."""

    base: str
    offset: int
    rows: int
    cols: int


class Lines(NamedTuple):
    """How an operand's blocks lie: elements from one line to the next, and from one product of a batch to the next."""

    leading: int
    layer: int = 0


@dataclass(frozen=True)
class TileOp:
    """One launch: `count` products alpha (sum of A's blocks)(sum of B's), and what the epilogue does with each.

    `lines`: of A, of B, and of each destination.
    """

    kernel: TileKernel
    left: tuple[Piece, ...]
    right: tuple[Piece, ...]
    dest: tuple[Piece, ...]
    lines: tuple[Lines, ...]
    m: int
    n: int
    k: int
    count: int = 1
    alpha: float = 1
    beta: float = 0
    itemsize: int = 4
    follows: bool = False  # what the launch before this one writes is only added to: they may overlap until then
    open: bool = False  # is the strategy the device's choice?

    def __hash__(self) -> int:
        return id(self)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """In the order of the launch's parameters."""
        return (*self.left, *self.right, *self.dest)

    @property
    def tiles(self) -> tuple[int, int]:
        """Below each other and side by side."""
        return -(-self.m // self.kernel.strategy.m_s), -(-self.n // self.kernel.strategy.n_s)

    @property
    def grid(self) -> tuple[int, int, int]:
        down, across = self.tiles
        return down * across * self.count, 1, 1

    @cached_property
    def parameters(self) -> bytes:
        """struct Parameters of cuda/tile.cuh, its pointers null: they come first in each block."""
        blocks = b"".join(struct.pack("<q2i", 0, p.rows, p.cols) for p in self.pieces)
        steps = *(x.leading for x in self.lines), *(x.layer for x in self.lines)
        sizes = self.m, self.n, self.k, *self.tiles, GROUP
        return blocks + struct.pack(f"<{len(steps)}q2d6i", *steps, self.alpha, self.beta, *sizes)

    @cached_property
    def access(self) -> Access:
        """`vector` where every line of every block is aligned, if the bases are."""
        fits = all(x * self.itemsize % WIDE == 0 for lines in self.lines for x in lines)
        return "vector" if fits and all(p.offset % WIDE == 0 for p in self.pieces) else "scalar"


def settled(op: TileOp, multiprocessors: int) -> TileOp:
    """The launch with the strategy that this device wants, if that was left open."""
    if not op.open:
        return op
    best = best_for(op.m, op.n, op.count, multiprocessors)
    return replace(op, kernel=replace(op.kernel, strategy=best), open=False)


# ---- what a plan wants of the kernel


class View(Protocol):
    """A rectangle of memory, as tapes have it: strides in elements, the offset in bytes."""

    @property
    def base(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def down(self) -> int: ...
    @property
    def right(self) -> int: ...


Terms = Sequence[tuple[float, View]]


PATHS: Mapping[str, tuple[Path, Path]] = {"plain": ("plain", "plain"), "texture": ("texture", "plain")}


def strategy_of(leaf: str) -> Strategy | None:
    """What the leaf `tile.huge` and the like compiles; `tile` leaves the choice open."""
    names = [part for part in leaf.split(".")[1:] if part not in PATHS]
    return strategy(names[0]) if names else None


def paths_of(leaf: str) -> tuple[Path, Path]:
    """How the leaf's tiles come to shared memory: `tile.gpu8.texture` and the like say it."""
    return PATHS.get(leaf.rpartition(".")[2], ("async", "async"))


def fused_op(
    s: Strategy,
    left: Terms,
    right: Terms,
    dest: Sequence[tuple[float, Update, View]],
    alpha: float,
    beta: float,
    follows: bool,
) -> TileOp:
    """One product of float32 numbers with its sums. Of a C that lies column by column, the transpose is computed."""
    m, n = (max(getattr(x, side) for _, _, x in dest) for side in ("rows", "cols"))
    k = min(max(x.cols for _, x in left), max(x.rows for _, x in right))
    turned = dest[0][2].right != 1
    if turned:
        left, right, m, n = right, left, n, m
    along: tuple[Along, Along] = _along(left, 0, turned), _along(right, 1, turned)
    (factor, lefts), (other, rights) = _factors(left), _factors(right)
    targets = tuple(Target(factor * other * c, update) for c, update, _ in dest)
    # Sums are formed one tile ahead, so that there is nothing to gain by more than two stages.
    kernel = TileKernel(replace(s, stages=2), "float32", lefts, rights, added(*targets), along)
    views = [x for _, x in left], [x for _, x in right], [x for _, _, x in dest]
    pieces = [tuple(_piece(x, turned) for x in side) for side in views]
    a, b, c = (Lines(max(x[0].down, x[0].right)) for x in views)
    lines = a, b, *[c] * len(dest)
    return TileOp(kernel, pieces[0], pieces[1], pieces[2], lines, m, n, k, 1, alpha, beta, follows=follows)


def updating_op(
    leaf: str, left: View, right: View, update: Program, reads: Sequence[View], writes: Sequence[View]
) -> TileOp:
    """One product of float32 numbers and what a step table's kernel makes of it: `update` over it and the reads."""
    s, turned, k = strategy_of(leaf), writes[0].right != 1, min(left.cols, right.rows)
    m, n = (max(getattr(x, side) for x in writes) for side in ("rows", "cols"))
    if turned:
        left, right, m, n = right, left, n, m
    places = list(dict.fromkeys((*writes, *reads)))
    epilogue = Epilogue(update, *(tuple(places.index(x) for x in side) for side in (reads, writes)))
    along: tuple[Along, Along] = _along([(1, left)], 0, turned), _along([(1, right)], 1, turned)
    kernel = TileKernel(s or SUMMING, "float32", epilogue=epilogue, along=along, paths=paths_of(leaf))
    pieces = [_piece(x, turned) for x in (left, right, *places)]
    lines = tuple(Lines(max(x.down, x.right)) for x in (left, right, *places))
    return TileOp(kernel, (pieces[0],), (pieces[1],), tuple(pieces[2:]), lines, m, n, k, open=s is None)


def _factors(terms: Terms) -> tuple[float, tuple[float, ...]]:
    """A lone block's coefficient is the product's: it is copied as it is."""
    return (terms[0][0], (1.0,)) if len(terms) == 1 else (1.0, tuple(c for c, _ in terms))


def _along(terms: Terms, inner: int, turned: bool) -> Along:
    """Of the kernel's operand number `inner`; turned, its rows are what is a column of the view."""
    rows = (terms[0][1].right == 1) != turned
    return "inner" if rows == (inner == 0) else "outer"


def _piece(x: View, turned: bool) -> Piece:
    return Piece(x.base, x.offset, *((x.cols, x.rows) if turned else (x.rows, x.cols)))
