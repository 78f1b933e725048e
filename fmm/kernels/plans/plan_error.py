"""What every part of a plan raises when it cannot be read or cannot run."""

from __future__ import annotations


class PlanError(ValueError):
    """A plan that cannot be read, or that cannot run on the given problem."""
