"""Min-plus products and all-pairs shortest paths: the public calls, closure tables, and kernels for host and CUDA."""
