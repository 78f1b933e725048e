"""A CUDA device as the kernels and the block model see it: a value, so that everything about a device can be computed
without one."""

from __future__ import annotations

from dataclasses import dataclass

from fmm.hardware.datasheets import Capability


@dataclass(frozen=True, slots=True)
class BlockTerms:
    """What the block model's formulas cannot say, fitted to an H200's times of Huang's six strategies:
    benchmarks/CONCLUSIONS.md (blocks)."""

    wait: float = 412.0  # cycles of a warp at every tile: at the barrier, for its copies and its first fragments
    far: float = 455.0  # and so many more where tiles come from beyond the second-level cache
    share: float = 0.859  # of Equation 9: the rest is read once for several threads
    launch: float = 2.5e-6  # seconds before the first and after the last tile


@dataclass(frozen=True, slots=True)
class Chip:
    """Limits of its compute capability, and what its own driver or datasheet says: Hz, bytes/s of global memory,
    bytes of the second-level cache."""

    limits: Capability
    multiprocessors: int
    clock: float
    bandwidth: float
    cache: float
    fitted: BlockTerms = BlockTerms()
    version: int = 0  # the compute capability, 90 for 9.0, where the table of limits knows only an older one
    shared: int = 0  # bytes of shared memory that a thread block may ask for; 0: as the limits say
    tensor_maps: bool = True  # does the driver make maps for the copy engine?

    @property
    def compute_capability(self) -> int:
        """90 for 9.0."""
        return self.version or int(self.limits.capability.replace(".", ""))

    @property
    def shared_per_block(self) -> int:
        """Bytes of shared memory that a thread block may ask for."""
        return self.shared or self.limits.shared_per_block

    @property
    def has_copy_engine(self) -> bool:
        """Does an engine copy whole tiles from global to shared memory?"""
        return self.compute_capability >= 90 and self.tensor_maps

    @property
    def has_warpgroups(self) -> bool:
        """Are there Hopper's instructions by which four warps multiply together? No other chip has them."""
        return self.compute_capability == 90 and self.has_copy_engine

    @property
    def rounds_pairs(self) -> bool:
        """Are there instructions that round two float32 numbers to float16 at once?"""
        return self.compute_capability >= 80

    @property
    def has_warp_float64(self) -> bool:
        """Are there instructions by which a warp multiplies float64?"""
        return self.compute_capability >= 80

    @property
    def overlaps_launches(self) -> bool:
        """May a launch begin before the one in front of it has ended, and wait for it where it must?"""
        return self.compute_capability >= 90

    @property
    def schedulers(self) -> int:
        """Warps of a multiprocessor that issue in one cycle."""
        return self.limits.warp_granularity

    @property
    def near(self) -> float:
        """Bytes that every multiprocessor finds in its half of the second-level cache."""
        return self.cache / 2

    @property
    def writes(self) -> float:
        """Bytes a multiprocessor writes in a cycle when all write."""
        return self.bandwidth / self.multiprocessors / self.clock
