"""fmm/kernels/cuda/launch."""
