"""Fitting the performance model to what was measured: its calibration, and the block model's terms."""
