"""Min-plus products and all-pairs shortest paths: closure tables, kernels for the host and for CUDA, and the calls."""
