"""Products of programs that do not know of fmm: those of NumPy, CuPy and torch, by fmm where a plan pays."""

from fmm.integrations.install_targets import install, installed, uninstall

__all__ = ["install", "installed", "uninstall"]
