"""The block-parameter model of Huang, Yu and van de Geijn (ACM TOMS 46, 2020), section 5.

A kernel computes (sum of W_A blocks of A)(sum of W_B blocks of B) and adds it to W_C blocks of C, by tiles.
Equation numbers are the paper's. Rates are in flop/s and bytes/s. The counts per thread block, (8) to (17), are in
fmm.perfmodel.block_model, which also has today's multiprocessors in cycles: `datasheet_chip` is their device.
Left out, as in the paper: hardware caches other than by the multiplier lambda, parallelism between kernels,
launches, and latency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import product
from math import ceil, inf, sqrt

from fmm.hardware.chip import Chip
from fmm.hardware.datasheets import Capability, Datasheet
from fmm.hardware.occupancy import active_blocks, max_registers
from fmm.kernels.cuda.products.kernel_sizes import TileSizes
from fmm.perfmodel.block_model import (
    Operands,
    global_elements,
    kernel_flops,
    registers_needed,
    shared_elements,
    shared_tile,
)
from fmm.problem import Shape, positive_shape

Coefficients = Sequence[Sequence[Fraction | int | float]]  # blocks x products


# ---- what a product touches


def operand_counts(U: Coefficients, V: Coefficients, W: Coefficients) -> Counter[Operands]:
    """Return how many products of a scheme touch W_A, W_B and W_C blocks (Figure 6)."""
    columns = (zip(*x, strict=True) for x in (U, V, W))
    return Counter((_nonzeros(a), _nonzeros(b), _nonzeros(c)) for a, b, c in zip(*columns, strict=True))


def composed_counts(outer: Mapping[Operands, int], inner: Mapping[Operands, int]) -> Counter[Operands]:
    """Return the operand counts of a Kronecker product of two schemes, without forming it."""
    counts: Counter[Operands] = Counter()
    for ((a, b, c), times), ((x, y, z), more) in product(outer.items(), inner.items()):
        counts[a * x, b * y, c * z] += times * more
    return counts


def _nonzeros(column: Iterable[Fraction | int | float]) -> int:
    return sum(1 for coefficient in column if coefficient)


# ---- the device, as the model sees it


@dataclass(frozen=True, slots=True)
class Machine:
    """A device at one element size: flop in flop/s, gmop (global) and smop (shared memory) in bytes/s."""

    flop: float
    gmop: float
    smop: float
    sms: int
    limits: Capability
    element_bytes: int = 4

    @property
    def registers_per_element(self) -> Fraction:
        return Fraction(self.element_bytes, 4)


def paper_machine(device: Datasheet, element_bytes: int = 4, cache: float = 0.0) -> Machine:
    """Datasheet rates; `cache` is footnote 12's lambda: global bandwidth x (1 + lambda) for reuse in L2."""
    return Machine(
        flop=device.peak(element_bytes),
        gmop=device.global_bandwidth * (1 + cache),
        smop=device.shared_bandwidth,
        sms=device.sms,
        limits=device.limits,
        element_bytes=element_bytes,
    )


def datasheet_chip(device: Datasheet) -> Chip:
    """Return a datasheet's device for the model in cycles."""
    return Chip(
        device.limits, device.sms, 1e6 * device.boost_mhz, device.global_bandwidth, 1024.0 * (device.l2_kib or 0)
    )


# ---- bounds on block sizes, (13) and (15) to (18)


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound: `have` must be at least (or, if strict, be below) `need`."""

    equation: int
    what: str
    have: float
    need: float
    below: bool = False

    @property
    def holds(self) -> bool:
        return self.have < self.need if self.below else self.have >= self.need


def strategy_bounds(s: TileSizes, w: Operands, on: Machine, k: int | None = None) -> tuple[Bound, ...]:
    """Return every bound for one product, k deep (None: as k grows without limit)."""
    step = min(s.threads * s.m_r - s.m_s * s.k_s, s.threads * s.n_r - s.n_s * s.k_s)
    most = on.limits.max_registers_per_thread
    # The paper's (17) has the shared memory of an SM; on later devices a block may ask for a little less.
    shared = on.limits.shared_per_block
    return (
        Bound(13, "flops per global element", global_intensity(s, w, k), global_need(on)),
        Bound(15, "flops per shared element", shared_intensity(s, w, k), shared_need(on)),
        Bound(16, "registers per thread", _register_words(s, w, on), most, below=True),
        Bound(17, "shared bytes per block", on.element_bytes * shared_tile(s), shared, below=True),
        Bound(18, "elements prefetched beyond the tile", step, 0),
    )


def admitted_strategies(
    strategies: Iterable[TileSizes], operands: Iterable[Operands], on: Machine, k: int | None = None
) -> tuple[TileSizes, ...]:
    """Return the strategies that meet every bound for every product in `operands`."""
    wanted = tuple(operands)
    return tuple(s for s in strategies if all(b.holds for w in wanted for b in strategy_bounds(s, w, on, k)))


def global_intensity(s: TileSizes, w: Operands, k: int | None = None) -> float:
    """Left side of (13): flops per element of global traffic."""
    return _ratio(partial(kernel_flops, s, w), partial(global_elements, s, w), k)


def shared_intensity(s: TileSizes, w: Operands, k: int | None = None) -> float:
    """Left side of (15): flops per element of shared traffic."""
    return _ratio(partial(kernel_flops, s, w), partial(shared_elements, s), k)


def _ratio(top: Callable[[int], int], bottom: Callable[[int], int], k: int | None) -> float:
    """top(k) / bottom(k); every count is linear in k, so in the limit (None) the slopes' ratio."""
    if k is None:
        return (top(1) - top(0)) / (bottom(1) - bottom(0))
    if k < 1:
        raise ValueError(f"k must be positive, not {k}")
    return top(k) / bottom(k)


def _register_words(s: TileSizes, w: Operands, on: Machine) -> int:
    return ceil(registers_needed(s, w) * on.registers_per_element)


def global_need(on: Machine) -> float:
    """Right side of (13)."""
    return on.element_bytes * on.flop / on.gmop


def shared_need(on: Machine) -> float:
    """Right side of (15)."""
    return on.element_bytes * on.flop / on.smop


def least_square_tile(w: Operands, on: Machine, k: int | None = None) -> float:
    """(13) solved for m_S = n_S; infinite where no tile is large enough at this k."""
    need, reads, writes = global_need(on), w[0] + w[1], w[2]
    if k is None:
        return (need * reads - reads + 2) / 2
    per_tile = 2 * k + writes - 1 - need * writes
    return k * (need * reads - reads + 2) / per_tile if per_tile > 0 else inf


def least_square_piece(m_s: float, on: Machine) -> float:
    """(15) solved for m_R = n_R of a GEMM with square tiles of m_S (infinity for the limit)."""
    left = 1 / shared_need(on) - 1 / m_s
    return 1 / left if left > 0 else inf


def greatest_square_piece(w: Operands, on: Machine, extra: int = 0) -> float:
    """(16) solved for m_R = n_R, with `extra` registers beside its own: the size must stay below this."""
    half = (4 + w[0] + w[1]) / 2
    elements = (on.limits.max_registers_per_thread - extra) / float(on.registers_per_element)
    return sqrt(half * half + elements) - half


# ---- registers that a compiled kernel has


@dataclass(frozen=True, slots=True)
class RegisterModel:
    """Registers per thread of a compiled kernel: (16), footnote 14's bookkeeping, and what neither has.

    `per_pointer` is 1 or, for 64-bit addresses, 2 registers per block of A and B; `loop` is the footnote's 5;
    `unprinted` are registers that no formula of the paper has; with `least_blocks` the compiler is taken to
    spill until that many blocks fit on an SM (0: never).
    """

    per_pointer: int = 1
    loop: int = 5
    unprinted: int = 0
    least_blocks: int = 0

    def count(self, s: TileSizes, w: Operands, on: Machine) -> int:
        wanted = self.wanted(s, w, on)
        if not self.least_blocks:
            return wanted
        return min(wanted, max_registers(on.limits, s.threads, self.least_blocks))

    def wanted(self, s: TileSizes, w: Operands, on: Machine) -> int:
        """Before any spilling."""
        return _register_words(s, w, on) + self.per_pointer * (w[0] + w[1]) + self.loop + self.unprinted


FOOTNOTE_14 = RegisterModel()
# The active-block counts of footnote 15 need more than footnote 14's "at least" count: with one register per
# pointer, 12 to 15 further ones, which the paper does not print, give 24, 20 and 18 blocks for Small; and
# "Huge: 2 for all variants" holds only if kernels that want more than 128 registers are held to 128 (section
# 5.4 speaks of spilling to maintain two active blocks). The least number that fits is used.
FOOTNOTE_15 = RegisterModel(unprinted=12, least_blocks=2)


def blocks_per_sm(s: TileSizes, w: Operands, on: Machine, model: RegisterModel = FOOTNOTE_15) -> int:
    """Return the active blocks of this kernel on one SM."""
    tile = on.element_bytes * shared_tile(s)
    return active_blocks(on.limits, s.threads, model.count(s, w, on), tile)


# ---- time, equations (19) to (22)


@dataclass(frozen=True, slots=True)
class BlockTime:
    """Seconds that one product would take by each resource alone; the slowest decides."""

    flop: float
    gmop: float
    smop: float

    @property
    def seconds(self) -> float:
        return max(self.flop, self.gmop, self.smop)

    @property
    def limited_by(self) -> str:
        return max(("flop", self.flop), ("gmop", self.gmop), ("smop", self.smop), key=lambda pair: pair[1])[0]


def block_time(s: TileSizes, w: Operands, shape: Shape, on: Machine, model: RegisterModel = FOOTNOTE_15) -> BlockTime:
    """Eq. (19) to (22) for one product of shape (m, k, n)."""
    m, k, n = positive_shape(shape)
    per_sm = blocks_per_sm(s, w, on, model)
    if per_sm == 0:
        raise ValueError(f"strategy {s.name} with operands {w} cannot be launched: no block fits on an SM")
    together = on.sms * per_sm  # (19)
    tiles = -(-m // s.m_s) * -(-n // s.n_s)
    waves = -(-tiles // together)
    return BlockTime(
        flop=waves * together * kernel_flops(s, w, k) / on.flop,  # (20)
        gmop=tiles * on.element_bytes * global_elements(s, w, k) / on.gmop,  # (22)
        smop=waves * together * on.element_bytes * shared_elements(s, k) / on.smop,  # (21)
    )


def direct_seconds(s: TileSizes, counts: Mapping[Operands, int], split: Shape, shape: Shape, on: Machine) -> float:
    """A direct fast multiplication: its products one after the other, each on shape / split, rounded up."""
    m, k, n = positive_shape(shape)
    block = (-(-m // split[0]), -(-k // split[1]), -(-n // split[2]))
    return sum(times * block_time(s, w, block, on).seconds for w, times in counts.items())


def effective_tflops(shape: Shape, seconds: float) -> float:
    """Eq. (7): the classical flop count over the time."""
    m, k, n = positive_shape(shape)
    return 2e-12 * m * n * k / seconds
