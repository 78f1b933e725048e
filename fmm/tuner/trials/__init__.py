"""Record the measurements of a tuning: trials and their file, the journal, paired rounds, and the environment."""

from __future__ import annotations

from fmm.tuner.trials.record import frame

__all__ = ["frame"]
