"""The stages of a tuning: the first look, the probes, and the shapes of both."""
