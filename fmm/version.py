"""The version of fmm: the only source, from which the build reads the version of the package."""

__version__ = "0.1.0"
