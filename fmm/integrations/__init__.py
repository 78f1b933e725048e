"""Let fmm compute the products of NumPy, CuPy and torch where a plan is faster than the vendor."""

from fmm.integrations.install_targets import install, installed, uninstall

__all__ = ["install", "installed", "uninstall"]
