"""fmm inside other libraries: products of NumPy, CuPy and torch computed by fmm where a plan pays."""

from fmm.integrations.install_targets import install, installed, uninstall

__all__ = ["install", "installed", "uninstall"]
