"""Adapters for NumPy, CuPy and torch: they describe arrays, allocate memory and call the library's own product.

No adapter chooses or runs a plan. Supporting another array library takes one more adapter, like NumpyLibrary.
"""
