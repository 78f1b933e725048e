"""fmm/tuner/devices."""
