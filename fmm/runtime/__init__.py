"""fmm/runtime."""
