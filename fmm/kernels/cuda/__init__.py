"""fmm/kernels/cuda."""
