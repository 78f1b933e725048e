"""Sums on the host: as elementwise calls, as compiled loops, and by powers of two."""
