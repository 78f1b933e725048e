"""Compute how many thread blocks are active on a multiprocessor (SM), by the rules of NVIDIA's occupancy calculator.

Shared memory is assumed to take the largest possible part of the L1 cache. The module ignores the limits that barriers
and clusters set, and the resources that a debugger or profiler needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from fmm.hardware.datasheets import CapabilityLimits

THREADS_PER_WARP = 32


@dataclass(frozen=True, slots=True)
class BlockResources:
    """The resources that one thread block of a kernel needs."""

    threads: int
    registers: int  # registers of each thread
    shared_bytes: int = 0

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ValueError(f"threads per block must be positive, not {self.threads}")
        if self.registers < 0:
            raise ValueError(f"registers per thread must not be negative: {self.registers}")
        if self.shared_bytes < 0:
            raise ValueError(f"shared memory per block must not be negative: {self.shared_bytes}")

    @property
    def warp_count(self) -> int:
        """The number of warps of the thread block, an incomplete last warp included."""
        return -(-self.threads // THREADS_PER_WARP)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The number of thread blocks on a multiprocessor that each resource allows; 0: the kernel cannot be launched."""

    by_threads: int
    by_blocks: int
    by_registers: int
    by_shared: int

    @property
    def active_block_count(self) -> int:
        """The number of active thread blocks of a multiprocessor: the minimum over all resources."""
        return min(self.by_threads, self.by_blocks, self.by_registers, self.by_shared)

    @property
    def limiting_resources(self) -> tuple[str, ...]:
        """The names of the limiting resources: "threads", "blocks", "registers" or "shared"."""
        names = ("threads", "blocks", "registers", "shared")
        counts = (self.by_threads, self.by_blocks, self.by_registers, self.by_shared)
        return tuple(name for name, count in zip(names, counts, strict=True) if count == self.active_block_count)


def launch_occupancy(limits: CapabilityLimits, launch: BlockResources) -> Occupancy:
    """Return, for each resource, the number of thread blocks on a multiprocessor that this resource alone allows."""
    return Occupancy(
        by_threads=_blocks_by_threads(limits, launch),
        by_blocks=limits.max_blocks_per_sm,
        by_registers=_blocks_by_registers(limits, launch),
        by_shared=_blocks_by_shared_memory(limits, launch),
    )


def count_active_blocks(limits: CapabilityLimits, threads: int, registers: int, shared_bytes: int = 0) -> int:
    """Return the number of active thread blocks of a multiprocessor; `registers` is the number for each thread."""
    return launch_occupancy(limits, BlockResources(threads, registers, shared_bytes)).active_block_count


def register_range(limits: CapabilityLimits, threads: int, shared_bytes: int, blocks: int) -> range:
    """Return the range of registers per thread with which a multiprocessor has exactly `blocks` active thread blocks.

    The range is empty if no number of registers gives exactly `blocks` thread blocks.
    """
    counts = [
        registers
        for registers in range(1, limits.max_registers_per_thread + 1)
        if count_active_blocks(limits, threads, registers, shared_bytes) == blocks
    ]
    return range(counts[0], counts[-1] + 1) if counts else range(0)


def max_registers(limits: CapabilityLimits, threads: int, blocks: int) -> int:
    """Return the largest number of registers per thread with which `blocks` thread blocks fit on a multiprocessor."""
    fitting = (
        registers
        for registers in range(limits.max_registers_per_thread, 0, -1)
        if _blocks_by_registers(limits, BlockResources(threads, registers)) >= blocks
    )
    return next(fitting, 0)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _blocks_by_threads(limits: CapabilityLimits, launch: BlockResources) -> int:
    if launch.threads > limits.max_threads_per_block:
        return 0
    return limits.max_threads_per_sm // THREADS_PER_WARP // launch.warp_count


def _blocks_by_registers(limits: CapabilityLimits, launch: BlockResources) -> int:
    if launch.registers > limits.max_registers_per_thread:
        return 0
    if launch.registers == 0:
        return limits.max_blocks_per_sm
    # Registers are counted for the block's warps, rounded up to a multiple of the multiprocessor's number of
    # partitions.
    even_warps = _round_up(launch.warp_count, limits.warp_granularity)
    if limits.register_granularity == "block":
        per_block = _round_up(even_warps * launch.registers * THREADS_PER_WARP, limits.register_unit)
        return limits.registers_per_sm // per_block
    per_warp = _round_up(launch.registers * THREADS_PER_WARP, limits.register_unit)
    if per_warp * even_warps > limits.registers_per_block:
        return 0
    # Each partition of a multiprocessor has its own share of the register file and holds whole warps.
    warps = limits.registers_per_sm // limits.warp_granularity // per_warp * limits.warp_granularity
    return warps // launch.warp_count


def _blocks_by_shared_memory(limits: CapabilityLimits, launch: BlockResources) -> int:
    per_block = _round_up(launch.shared_bytes + limits.reserved_shared_per_block, limits.shared_unit)
    if per_block > limits.shared_per_block + limits.reserved_shared_per_block:
        return 0
    return limits.shared_per_sm // per_block if per_block else limits.max_blocks_per_sm
