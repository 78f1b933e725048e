"""fmm.orthogonalize: the Newton-Schulz iteration, as Muon and its relatives run it."""

from fmm.newton_schulz.orthogonalization import orthogonalize

__all__ = ["orthogonalize"]
