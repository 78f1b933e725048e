"""Fit the performance model to measured times: the calibration, and the constants of the block model."""
