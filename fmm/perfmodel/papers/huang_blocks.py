"""Compute bounds and times by the block-parameter model of Huang, Yu and van de Geijn (ACM TOMS 46, 2020, section 5).

One product (a kernel) multiplies a sum of W_A blocks of A by a sum of W_B blocks of B. The product is added to W_C
blocks of C. Comments and messages cite the paper's equations by number. fmm.perfmodel.block_model computes the counts
of a thread block: Equations 8 to 12, 14, and the left-hand sides of 16 and 17. Like the paper, the model leaves out
caches (except for the multiplier lambda), concurrent kernels, launches and latency.
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
from fmm.hardware.datasheets import CapabilityLimits, Datasheet
from fmm.hardware.occupancy import count_active_blocks, max_registers
from fmm.kernels.cuda.products.kernel_sizes import TileSizes
from fmm.perfmodel.block_model import (
    OperandBlocks,
    global_memory_elements,
    kernel_flops,
    registers_needed,
    shared_memory_elements,
    shared_tile_elements,
)
from fmm.problem import Shape, check_positive_shape

# a scheme's coefficient matrix, with a row for each block and a column for each product
Coefficients = Sequence[Sequence[Fraction | int | float]]


# ---- the blocks that the products of a scheme read and write


def operand_counts(U: Coefficients, V: Coefficients, W: Coefficients) -> Counter[OperandBlocks]:
    """Return the number of a scheme's products with W_A blocks of A, W_B of B and W_C of C, as in Figure 6."""
    columns = (zip(*x, strict=True) for x in (U, V, W))
    return Counter((_nonzero_count(a), _nonzero_count(b), _nonzero_count(c)) for a, b, c in zip(*columns, strict=True))


def composed_operand_counts(
    outer: Mapping[OperandBlocks, int], inner: Mapping[OperandBlocks, int]
) -> Counter[OperandBlocks]:
    """Return the operand counts of the Kronecker product of two schemes, from the counts of both schemes."""
    counts: Counter[OperandBlocks] = Counter()
    for ((a, b, c), times), ((x, y, z), more) in product(outer.items(), inner.items()):
        counts[a * x, b * y, c * z] += times * more
    return counts


def _nonzero_count(column: Iterable[Fraction | int | float]) -> int:
    return sum(1 for coefficient in column if coefficient)


# ---- the device of the block model


@dataclass(frozen=True, slots=True)
class ModelledDevice:
    """The rates and limits of a device for elements of one size."""

    flop: float  # tau_flop, the rate of arithmetic in flop/s
    gmop: float  # tau_gmop, the bandwidth of global memory in bytes/s
    smop: float  # tau_smop, the bandwidth of all multiprocessors' shared memory in bytes/s
    sms: int  # number of multiprocessors
    limits: CapabilityLimits
    element_bytes: int = 4

    @property
    def registers_per_element(self) -> Fraction:
        """The number of registers of 32 bits that hold one element."""
        return Fraction(self.element_bytes, 4)


def modelled_device(device: Datasheet, element_bytes: int = 4, cache: float = 0.0) -> ModelledDevice:
    """Return the ModelledDevice with the rates of a datasheet; `cache` is the paper's lambda (footnote 12).

    Data reuse in the second-level cache makes tau_gmop the bandwidth of global memory times 1 + lambda.
    """
    return ModelledDevice(
        flop=device.peak_flops(element_bytes),
        gmop=device.global_memory_bandwidth * (1 + cache),
        smop=device.shared_memory_bandwidth,
        sms=device.sms,
        limits=device.capability_limits,
        element_bytes=element_bytes,
    )


def datasheet_chip(device: Datasheet) -> Chip:
    """Return the description of a datasheet's GPU for fmm.perfmodel.block_model, which counts time in cycles."""
    return Chip(
        device.capability_limits,
        device.sms,
        1e6 * device.boost_mhz,
        device.global_memory_bandwidth,
        1024.0 * (device.l2_kib or 0),
    )


# ---- bounds on block sizes, Equations 13 and 15 to 18


@dataclass(frozen=True, slots=True)
class BlockSizeBound:
    """One of the paper's bounds on block sizes: `value` >= `required`, or `value` < `required` if `below` is True."""

    equation: int
    what: str  # name of the bounded quantity with its unit
    value: float
    required: float
    below: bool = False

    @property
    def is_bound_met(self) -> bool:
        """True if `value` meets the bound."""
        return self.value < self.required if self.below else self.value >= self.required


def strategy_bounds(
    s: TileSizes, w: OperandBlocks, gpu: ModelledDevice, k: int | None = None
) -> tuple[BlockSizeBound, ...]:
    """Return the bounds for one product with the inner dimension k; None means the limit of infinite k."""
    prefetched = min(s.thread_count * s.m_r - s.m_s * s.k_s, s.thread_count * s.n_r - s.n_s * s.k_s)
    most = gpu.limits.max_registers_per_thread
    # Equation 17 of the paper uses the shared memory of a multiprocessor. On later devices, a thread block may use
    # slightly less shared memory than a multiprocessor has.
    shared = gpu.limits.shared_per_block
    return (
        BlockSizeBound(13, "flops per global element", global_intensity(s, w, k), required_global_intensity(gpu)),
        BlockSizeBound(15, "flops per shared element", shared_intensity(s, w, k), required_shared_intensity(gpu)),
        BlockSizeBound(16, "registers per thread", _needed_32_bit_registers(s, w, gpu), most, below=True),
        BlockSizeBound(17, "shared bytes per block", gpu.element_bytes * shared_tile_elements(s), shared, below=True),
        BlockSizeBound(18, "elements prefetched beyond the tile", prefetched, 0),
    )


def admitted_strategies(
    strategies: Iterable[TileSizes], operands: Iterable[OperandBlocks], gpu: ModelledDevice, k: int | None = None
) -> tuple[TileSizes, ...]:
    """Return the strategies that meet all bounds for each (W_A, W_B, W_C), the numbers of a product's blocks."""
    products = tuple(operands)
    return tuple(s for s in strategies if all(b.is_bound_met for w in products for b in strategy_bounds(s, w, gpu, k)))


def global_intensity(s: TileSizes, w: OperandBlocks, k: int | None = None) -> float:
    """Return the flops for each element that moves to or from global memory (left-hand side of Equation 13)."""
    return _intensity_ratio(partial(kernel_flops, s, w), partial(global_memory_elements, s, w), k)


def shared_intensity(s: TileSizes, w: OperandBlocks, k: int | None = None) -> float:
    """Return the flops for each element that moves to or from shared memory (left-hand side of Equation 15)."""
    return _intensity_ratio(partial(kernel_flops, s, w), partial(shared_memory_elements, s), k)


def _intensity_ratio(numerator: Callable[[int], int], denominator: Callable[[int], int], k: int | None) -> float:
    """Return numerator(k) / denominator(k).

    numerator(k) and denominator(k) are linear in k; if k is None, return the limit of infinite k, the ratio of the
    slopes.
    """
    if k is None:
        return (numerator(1) - numerator(0)) / (denominator(1) - denominator(0))
    if k < 1:
        raise ValueError(f"k must be positive, not {k}")
    return numerator(k) / denominator(k)


def _needed_32_bit_registers(s: TileSizes, w: OperandBlocks, gpu: ModelledDevice) -> int:
    """Return the left-hand side of Equation 16 in registers of 32 bits."""
    return ceil(registers_needed(s, w) * gpu.registers_per_element)


def required_global_intensity(gpu: ModelledDevice) -> float:
    """Return the right-hand side of Equation 13, element bytes x tau_flop / tau_gmop."""
    return gpu.element_bytes * gpu.flop / gpu.gmop


def required_shared_intensity(gpu: ModelledDevice) -> float:
    """Return the right-hand side of Equation 15, element bytes x tau_flop / tau_smop."""
    return gpu.element_bytes * gpu.flop / gpu.smop


def min_square_tile_side(w: OperandBlocks, gpu: ModelledDevice, k: int | None = None) -> float:
    """Return the smallest m_S = n_S that meets Equation 13; infinite if no tile is large enough for this k."""
    need, reads, writes = required_global_intensity(gpu), w[0] + w[1], w[2]
    if k is None:
        return (need * reads - reads + 2) / 2
    per_tile = 2 * k + writes - 1 - need * writes
    return k * (need * reads - reads + 2) / per_tile if per_tile > 0 else inf


def min_square_thread_tile(m_s: float, gpu: ModelledDevice) -> float:
    """Return the smallest m_R = n_R that meets Equation 15 for a GEMM with m_S = n_S; m_S may be infinite."""
    left = 1 / required_shared_intensity(gpu) - 1 / m_s
    return 1 / left if left > 0 else inf


def max_square_thread_tile(w: OperandBlocks, gpu: ModelledDevice, reserved_registers: int = 0) -> float:
    """Return the upper bound (exclusive) on m_R = n_R by Equation 16 if `reserved_registers` of a thread are in use."""
    half = (4 + w[0] + w[1]) / 2
    elements = (gpu.limits.max_registers_per_thread - reserved_registers) / float(gpu.registers_per_element)
    return sqrt(half * half + elements) - half


# ---- registers of a compiled kernel


@dataclass(frozen=True, slots=True)
class RegisterModel:
    """The registers of a thread that Equation 16 does not count."""

    per_pointer: int = 1  # number of registers for each block of A and B (footnote 14); 2 if addresses have 64 bits
    loop: int = 5  # number of registers for the loop (footnote 14)
    unprinted: int = 0  # number of registers that no formula of the paper counts
    # the compiler spills registers until this number of thread blocks fits on a multiprocessor; 0: it never spills
    least_blocks: int = 0

    def count_registers(self, s: TileSizes, w: OperandBlocks, gpu: ModelledDevice) -> int:
        """Return the number of registers of a thread after spilling."""
        registers = self.count_before_spilling(s, w, gpu)
        if not self.least_blocks:
            return registers
        return min(registers, max_registers(gpu.limits, s.thread_count, self.least_blocks))

    def count_before_spilling(self, s: TileSizes, w: OperandBlocks, gpu: ModelledDevice) -> int:
        """Return the number of registers that a thread needs without spilling."""
        return _needed_32_bit_registers(s, w, gpu) + self.per_pointer * (w[0] + w[1]) + self.loop + self.unprinted


FOOTNOTE_14_REGISTERS = RegisterModel()
# The numbers of active thread blocks that footnote 15 of Huang's paper prints need more registers than footnote 14
# counts. The printed 24, 20 and 18 thread blocks of the strategy Small follow from one register for each pointer and 12
# to 15 further registers; the model has 12 further registers. The footnote's "Huge: 2 for all variants" holds only if
# kernels with more than 128 registers spill down to 128 registers. Section 5.4 of the paper mentions that the compiler
# spills registers to keep two thread blocks active.
FOOTNOTE_15_REGISTERS = RegisterModel(unprinted=12, least_blocks=2)


def active_blocks_per_sm(
    s: TileSizes, w: OperandBlocks, gpu: ModelledDevice, model: RegisterModel = FOOTNOTE_15_REGISTERS
) -> int:
    """Return the number of active thread blocks of a product's kernel on one multiprocessor."""
    tile = gpu.element_bytes * shared_tile_elements(s)
    return count_active_blocks(gpu.limits, s.thread_count, model.count_registers(s, w, gpu), tile)


# ---- time, Equations 19 to 22


@dataclass(frozen=True, slots=True)
class ResourceSeconds:
    """The seconds of one product by each resource, as if no other resource took time."""

    flop: float  # seconds of arithmetic (Equation 20)
    gmop: float  # seconds of transfers to and from global memory (Equation 22)
    smop: float  # seconds of transfers to and from shared memory (Equation 21)

    @property
    def limiting_seconds(self) -> float:
        """The seconds of the slowest resource."""
        return max(self.flop, self.gmop, self.smop)

    @property
    def limiting_resource(self) -> str:
        """The name of the slowest resource."""
        return max(("flop", self.flop), ("gmop", self.gmop), ("smop", self.smop), key=lambda pair: pair[1])[0]


def resource_seconds(
    s: TileSizes, w: OperandBlocks, shape: Shape, gpu: ModelledDevice, model: RegisterModel = FOOTNOTE_15_REGISTERS
) -> ResourceSeconds:
    """Return the seconds of one product of shape (m, k, n) by each resource (Equations 19 to 22)."""
    m, k, n = check_positive_shape(shape)
    per_sm = active_blocks_per_sm(s, w, gpu, model)
    if per_sm == 0:
        raise ValueError(f"strategy {s.name} with operands {w} cannot be launched: no block fits on an SM")
    together = gpu.sms * per_sm  # Equation 19
    tiles = -(-m // s.m_s) * -(-n // s.n_s)
    waves = -(-tiles // together)
    return ResourceSeconds(
        flop=waves * together * kernel_flops(s, w, k) / gpu.flop,  # Equation 20
        gmop=tiles * gpu.element_bytes * global_memory_elements(s, w, k) / gpu.gmop,  # Equation 22
        smop=waves * together * gpu.element_bytes * shared_memory_elements(s, k) / gpu.smop,  # Equation 21
    )


def direct_product_seconds(
    s: TileSizes, counts: Mapping[OperandBlocks, int], split: Shape, shape: Shape, gpu: ModelledDevice
) -> float:
    """Return the predicted seconds of one level of a scheme with sums inside its products, which run one by one.

    Each product has the shape of the largest blocks: shape / split, rounded up.
    """
    m, k, n = check_positive_shape(shape)
    block = (-(-m // split[0]), -(-k // split[1]), -(-n // split[2]))
    return sum(times * resource_seconds(s, w, block, gpu).limiting_seconds for w, times in counts.items())


def effective_tflops(shape: Shape, seconds: float) -> float:
    """Return the effective rate in TFLOPS: the flops of a classical product divided by the seconds (Equation 7)."""
    m, k, n = check_positive_shape(shape)
    return 2e-12 * m * n * k / seconds
