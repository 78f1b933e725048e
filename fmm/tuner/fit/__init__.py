"""Fit the performance model to measured times: the calibration, and the terms of the block model."""
