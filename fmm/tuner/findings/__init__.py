"""What follows from the trials of a tuning: a config section, diagnostics, thresholds and summary tables."""
