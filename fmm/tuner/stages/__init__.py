"""The stages of a tuning: the first look, the probes and the ladder of squares, and the shapes that are measured."""
