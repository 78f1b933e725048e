"""Product kernels, the host's half: their tile sizes, their sources, and what each launch is told."""
