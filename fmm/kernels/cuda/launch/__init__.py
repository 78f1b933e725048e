"""What needs a device: compiling kernels, encoding tensor maps, calling cuBLAS, playing launch lists, graphs."""
