"""Host code of the product kernels: each module generates one kernel's source, tile sizes, parameters and launch."""
