"""The description of a CUDA device, with which fmm selects kernels and predicts times without the device itself."""

from __future__ import annotations

from dataclasses import dataclass

from fmm.hardware.datasheets import CapabilityLimits


@dataclass(frozen=True, slots=True)
class BlockModelConstants:
    """Constants of the block model (fmm.perfmodel.block_model), fitted to times of Huang's six strategies on an H200.

    The section "blocks" of benchmarks/CONCLUSIONS.md describes the fit.
    """

    wait: float = 412.0  # cycles that a warp waits at every tile for the barrier, the copies and the first fragments
    far: float = 455.0  # additional cycles that a warp waits at a tile that is not in the second-level cache (L2)
    # number of reads of shared memory divided by the number in Huang's Equation 9; below 1, since one read may serve
    # several threads
    share: float = 0.859
    launch: float = 2.5e-6  # seconds of a launch before its first tile and after its last tile together


@dataclass(frozen=True, slots=True)
class Chip:
    """A GPU: the limits of its compute capability, and its own clock, memory and number of multiprocessors."""

    limits: CapabilityLimits
    multiprocessors: int
    clock: float  # cycles per second
    bandwidth: float  # bandwidth of global memory in bytes/s
    cache: float  # bytes of the second-level cache (L2)
    fitted: BlockModelConstants = BlockModelConstants()
    # the measured sizes (m, k, n) of float32 products, each with the name of the fastest tile strategy
    strategies: tuple[tuple[tuple[int, int, int], str], ...] = ()
    # compute capability of the device (90 for 9.0) if the table lacks it and `limits` belong to an older one; else 0
    version: int = 0
    shared: int = 0  # bytes of shared memory that a thread block may have; 0: the number in `limits`
    tensor_maps: bool = True  # True if the driver can create tensor maps, which the copy engine (TMA) needs

    @property
    def compute_capability(self) -> int:
        """The compute capability as a number, 90 for 9.0."""
        return self.version or int(self.limits.capability.replace(".", ""))

    @property
    def shared_bytes_per_block(self) -> int:
        """Bytes of shared memory that a thread block may have."""
        return self.shared or self.limits.shared_per_block

    @property
    def has_copy_engine(self) -> bool:
        """True if the copy engine (TMA) can copy whole tiles from global to shared memory."""
        return self.compute_capability >= 90 and self.tensor_maps

    @property
    def has_warpgroups(self) -> bool:
        """True for Hopper, the only architecture with matrix instructions of four warps (wgmma)."""
        return self.compute_capability == 90 and self.has_copy_engine

    @property
    def has_warp_mma(self) -> bool:
        """True if the GPU has asynchronous copies, and warp matrix instructions (mma.sync) for float16 and int8."""
        return self.compute_capability >= 80

    @property
    def has_tensor_memory(self) -> bool:
        """True for data-center Blackwell, where matrix instructions (tcgen05) read and write tensor memory.

        On data-center Blackwell, the older matrix instructions of a warp (mma.sync) run at a small part of the tensor
        cores' full rate.
        """
        return 100 <= self.compute_capability < 120

    @property
    def can_round_float32_pairs(self) -> bool:
        """True if the GPU has an instruction that rounds two float32 numbers to two float16 numbers."""
        return self.compute_capability >= 80

    @property
    def has_float64_mma(self) -> bool:
        """True if the GPU has warp matrix instructions (mma.sync) for float64."""
        return self.compute_capability >= 80

    @property
    def can_overlap_launches(self) -> bool:
        """True if a kernel may begin before the previous kernel has ended (programmatic dependent launch)."""
        return self.compute_capability >= 90

    @property
    def warp_schedulers(self) -> int:
        """The number of warp schedulers of a multiprocessor; each scheduler issues one instruction per cycle."""
        return self.limits.warp_granularity

    @property
    def near_l2_bytes(self) -> float:
        """Bytes of the near half of the second-level cache: a multiprocessor is connected directly to one half only."""
        return self.cache / 2

    @property
    def write_bytes_per_cycle(self) -> float:
        """Bytes per cycle that one multiprocessor writes to global memory while all multiprocessors write."""
        return self.bandwidth / self.multiprocessors / self.clock
