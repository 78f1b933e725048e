"""Stages of a tuning: the first look, the probes, and the measured shapes."""
