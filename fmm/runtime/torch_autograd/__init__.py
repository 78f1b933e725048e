"""fmm on torch tensors: gradients, and the operator that compiled graphs contain."""
