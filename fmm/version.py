"""The version of fmm; the build of the package reads the version from this module."""

__version__ = "0.1.0"
