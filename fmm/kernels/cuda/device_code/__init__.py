"""fmm/kernels/cuda/device_code."""
