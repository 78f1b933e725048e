"""The commands of fmm-tune, a module for each."""
