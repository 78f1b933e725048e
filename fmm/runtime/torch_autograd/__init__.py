"""fmm for torch tensors: gradients, and the operator torch.ops.fmm.matmul for compiled graphs."""
