"""Devices of the tuner: the CPU, a CUDA device, and a simulated device whose times are the model's with noise."""
