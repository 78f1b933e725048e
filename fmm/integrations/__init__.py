"""Installation of fmm into NumPy, CuPy and torch; fmm computes their products where a plan beats the vendor."""

from fmm.integrations.install_targets import install, installed, uninstall

__all__ = ["install", "installed", "uninstall"]
