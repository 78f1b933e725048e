"""Handling of inf and NaN: flags that kernels raise, and launches that recompute a product without a fast algorithm."""
