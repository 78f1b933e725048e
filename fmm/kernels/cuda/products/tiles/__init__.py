"""Products by tiles: sizes, sources and launches of the kernels that multiply what lies in memory as it is."""
