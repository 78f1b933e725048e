"""fmm/kernels/plans."""
