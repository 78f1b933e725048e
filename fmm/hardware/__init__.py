"""fmm/hardware."""
