"""fmm/kernels/cuda/recompute."""
