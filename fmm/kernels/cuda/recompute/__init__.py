"""What inf and NaN ask for: a flag that kernels raise, and the product computed again in the classical order."""
