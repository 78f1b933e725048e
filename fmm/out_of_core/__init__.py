"""Products of NumPy's arrays on a CUDA device, however large they are: streamed through it in tiles."""
