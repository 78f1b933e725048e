"""fmm/kernels/algorithms."""
