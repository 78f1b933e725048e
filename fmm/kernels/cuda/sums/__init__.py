"""Host code of the kernels that add blocks: the order of their statements, their CUDA source, and their launches."""
