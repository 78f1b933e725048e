"""Running a prepared call, on the host or on a CUDA device, and what inf and NaN ask for."""
