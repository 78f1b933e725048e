"""The sum kernel, the host's half: the order of its additions, its source, and what each launch is told."""
