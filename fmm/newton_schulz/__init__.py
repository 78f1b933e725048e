"""fmm.orthogonalize: the Newton-Schulz iteration, as the optimizer Muon and similar optimizers run it."""

from fmm.newton_schulz.orthogonalization import orthogonalize

__all__ = ["orthogonalize"]
