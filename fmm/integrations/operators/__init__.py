"""torch's operators of products below autograd, aten::mm and its kin, by fmm where a plan pays."""
