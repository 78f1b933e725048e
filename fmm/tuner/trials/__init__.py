"""Record the measurements of a tuning: trials, file of trials, journal, paired rounds, and environment."""

from __future__ import annotations

from fmm.tuner.trials.record import frame

__all__ = ["frame"]
