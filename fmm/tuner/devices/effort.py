"""What an effort means: how much is measured, per element type."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

FEWEST = 4  # held-out shapes by which a model is checked, however little time there is


@dataclass(frozen=True)
class Effort:
    """How much is measured, per element type."""

    seconds: float  # what the stages plan for
    most: float  # where measuring ends, whatever was planned
    rounds: int  # of the probe, the held-out shapes and each trial of the search
    held_out: int  # shapes
    trials: int  # of a shape's search
    enqueued: int  # of them the model's best
    certify: int  # rounds
    stride: int = 1  # one of so many shapes of the ladder is tuned
    blocks: bool = False  # are the strategies of our own product kernel timed?
    heaviest: float = inf  # products of the largest level whose kernels are waited for
    spread: float = 4.0  # of the sides of random shapes: the largest over the smallest
    look: bool = False  # no more than a first look: what is known of such devices, scaled by a few measurements

    def within(self, seconds: float) -> Effort:
        """The same, planned for no more than so many seconds: by smaller products, of which fewer are held out. (As it
        was planned it would be stopped before it came to these, and no model is used that was not checked.)"""
        if seconds >= self.seconds or self.look:
            return self
        held_out = max(round(self.held_out * seconds / self.seconds), min(FEWEST, self.held_out))
        return replace(self, seconds=seconds, held_out=held_out)


# On a CPU, plans are nobody's choice on products that take a tenth of a second or less, where they take twice as long
# as the vendor: what a model is off by there says nothing of large ones. So random shapes are few, large, and in few
# rounds. (Of sixty that were spread by four, 103 of 120 held-out pairs in float32 were of plans that took 1.6 times as
# long or more, and of six in a quick tuning all.)
CPU_QUICK = Effort(15, 21, 2, 4, 3, 2, 7, spread=1.5)
# `coarse` is the first pass when several types are tuned, so that there is something for each soon: for all four types
# of a CPU in a minute and a half.
EFFORTS = {
    "coarse": CPU_QUICK,
    "quick": CPU_QUICK,
    "default": Effort(150, 290, 3, 20, 10, 4, 11, spread=2.0),
    "full": Effort(900, 1500, 5, 60, 24, 6, 21, spread=2.0),
}
# A GPU is fast, but it is told what to do by a processor that is not, and its kernels must be compiled: its first pass
# is a look that needs the few that are compiled first, for all seven types in half a minute.
GPU_EFFORTS = {
    "coarse": Effort(2, 6, 3, 6, 1, 1, 7, heaviest=7, look=True),
    "quick": Effort(6, 24, 3, 10, 3, 2, 7, 3),
    "default": Effort(70, 280, 5, 60, 10, 4, 11, blocks=True),
    "full": Effort(450, 1500, 7, 120, 24, 6, 21, blocks=True),
}
