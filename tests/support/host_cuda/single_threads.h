// Collective instructions, for threads that run one by one.
#define __shfl_xor_sync(mask, x, step) (x)
static int __reduce_max_sync(unsigned, int x) { return x; }
static void __syncthreads() {}
