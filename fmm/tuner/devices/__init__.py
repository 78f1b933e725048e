"""What can be tuned: a CPU, a CUDA device, and a formula with noise that stands in for either."""
