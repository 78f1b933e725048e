"""The tuner: the fmm-tune command."""
