"""Inf and NaN: the flags that kernels raise, and the launches that recompute a product in the classical order."""
