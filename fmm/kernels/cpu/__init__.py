"""fmm/kernels/cpu."""
