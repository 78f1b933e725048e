"""Playing on a device: compiling kernels, binding launches, cuBLAS, streams, graphs, and playing launch lists."""
