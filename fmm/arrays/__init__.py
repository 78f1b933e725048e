"""Adapters for the arrays of NumPy, CuPy and torch: description, memory, and the library's own product.

Nothing here decides or runs a plan. A new library needs one more adapter like NumpyLibrary.
"""
