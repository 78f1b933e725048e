// The flag of one stream, and its counters. A kernel raises the flag if C has an inf or NaN; later kernels read it.
//
// The file includes no header, so NVRTC needs no include path.
#pragma once

namespace fmm {

struct Slot {
    int flag;           // nonzero ("up") if C has an inf or NaN
    unsigned finished;  // number of thread blocks that have finished the recomputation
    unsigned recomputed;   // number of recomputed products
};

__device__ __forceinline__ bool is_flag_up(const int* flag) { return *static_cast<const volatile int*>(flag) != 0; }

// Finish a thread block of the recomputation. The last thread block lowers the flag and writes the number of recomputed
// products to `count` in host memory. So no memset is necessary between calls.
__device__ __forceinline__ void finish_recompute(Slot* slot, unsigned* count) {
    __syncthreads();
    if (threadIdx.x) return;
    __threadfence();
    if (atomicAdd(&slot->finished, 1u) != gridDim.x - 1) return;
    slot->finished = 0;
    slot->flag = 0;
    *static_cast<volatile unsigned*>(count) = ++slot->recomputed;
    __threadfence_system();
}

}  // namespace fmm
