"""Adapters for NumPy, CuPy and torch: each describes arrays, allocates memory and calls the library's product.

No adapter chooses or runs a plan. Supporting another array library takes one more adapter, like NumpyLibrary.
"""
