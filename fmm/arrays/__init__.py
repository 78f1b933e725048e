"""Adapters for NumPy, CuPy and torch: they describe arrays, allocate memory and call the library's own product.

No adapter chooses or runs a plan. A new array library needs one more adapter like NumpyLibrary.
"""
