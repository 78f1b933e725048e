"""fmm/hardware/chip.py."""

from __future__ import annotations

from dataclasses import dataclass

from fmm.hardware.capability import Capability


@dataclass(frozen=True, slots=True)
class Fitted:
    """What the formulas cannot say, fitted to an H200's times of Huang's six: `python -m fmm.tuner.fit_blocks`."""

    wait: float = 412.0  # cycles of a warp at every tile: at the barrier, for its copies and its first fragments
    far: float = 455.0  # and so many more where tiles come from beyond the second-level cache
    share: float = 0.859  # of (9): the rest is read once for several threads
    launch: float = 2.5e-6  # seconds before the first and after the last tile


@dataclass(frozen=True, slots=True)
class Chip:
    """A device as the model sees it: Hz, bytes/s of global memory, bytes of the second-level cache."""

    limits: Capability
    multiprocessors: int
    clock: float
    bandwidth: float
    cache: float
    fitted: Fitted = Fitted()

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
