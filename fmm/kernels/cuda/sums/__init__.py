"""fmm/kernels/cuda/sums."""
