"""Devices of the tuner: the CPU, a CUDA device, and a simulated device with predicted times plus noise."""
