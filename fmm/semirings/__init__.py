"""Compute min-plus products and all-pairs shortest paths: public calls, closure tables, kernels for host and CUDA."""
