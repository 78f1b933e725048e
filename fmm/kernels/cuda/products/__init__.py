"""Product kernels, the host half: one module for each kind of kernel, with its sizes, source, parameters and launch."""
