"""fmm/kernels/cuda/products."""
