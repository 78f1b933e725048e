"""Products by residues, which are products of bytes: planes, sources, launches."""
