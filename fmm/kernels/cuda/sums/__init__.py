"""Host code of the kernels that add blocks: their statement order, their CUDA source, and their launches."""
