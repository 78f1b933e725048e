"""Measurements: trials and their file, the journal that records them, paired rounds, and the environment."""

from __future__ import annotations

from fmm.tuner.trials.record import frame

__all__ = ["frame"]
