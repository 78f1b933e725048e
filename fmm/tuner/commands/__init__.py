"""fmm/tuner/commands."""
