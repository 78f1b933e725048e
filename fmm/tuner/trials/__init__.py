"""What was measured: trials and their file, the journal that takes them, pairs in turns, and where it was."""

from __future__ import annotations

from fmm.tuner.trials.record import frame

__all__ = ["frame"]
