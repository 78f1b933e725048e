"""Compute a config section, diagnostics, thresholds and summary tables from the trials of a tuning."""
