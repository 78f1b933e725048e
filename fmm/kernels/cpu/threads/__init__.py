"""Threads on the host: ours, which no signal interrupts, those for the sums, BLAS's own, and a fork's."""
