"""Host code of the product kernels: each module has the sizes, source, parameters and launch of one kernel."""
