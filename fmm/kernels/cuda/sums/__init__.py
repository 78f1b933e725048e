"""Sum kernels, host side: the order of their statements, their source, and their launches."""
