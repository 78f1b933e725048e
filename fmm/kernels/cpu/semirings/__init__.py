"""Products and closures over semirings on the host, by NumPy or compiled by Numba."""
