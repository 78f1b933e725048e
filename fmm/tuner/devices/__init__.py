"""The devices that the tuner can measure: the CPU, a CUDA device, and a simulated device without hardware."""
