"""Products of NumPy arrays on a CUDA device, streamed through it in tiles, whatever their size."""
