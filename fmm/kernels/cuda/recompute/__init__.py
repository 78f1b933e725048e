"""Detect inf and NaN in C by flags that kernels raise, and recompute the product without a fast algorithm."""
