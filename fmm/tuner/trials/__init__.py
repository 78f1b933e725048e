"""Measure and record: trials, the file of trials, the journal of a tuning, paired rounds, and the environment."""

from __future__ import annotations

from fmm.tuner.trials.record import frame

__all__ = ["frame"]
