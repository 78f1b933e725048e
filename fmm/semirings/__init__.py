"""Min-plus products and all-pairs shortest paths: the public calls, closure tables, kernels for the host and CUDA."""
