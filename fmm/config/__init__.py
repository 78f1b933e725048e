"""fmm/config."""
