"""Multiply NumPy arrays of any size on a CUDA device: tiles of the matrices are streamed through the device."""
