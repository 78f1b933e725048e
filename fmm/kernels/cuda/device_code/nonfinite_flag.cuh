// The flag of one stream, by which kernels tell later kernels that C has an inf or NaN, and its counters.
//
// The file includes no header, so that NVRTC alone compiles it.
#pragma once

namespace fmm {

struct Slot {
    int flag;           // nonzero (up) if C has an inf or NaN
    unsigned finished;  // thread blocks that have finished the recomputation
    unsigned rescues;   // products recomputed so far
};

__device__ __forceinline__ bool is_up(const int* flag) { return *static_cast<const volatile int*>(flag) != 0; }

// The last thread block to finish resets the slot and tells the host, so that no memset is needed between calls.
// `count` is a copy of `rescues` in the host's memory.
__device__ __forceinline__ void finish(Slot* slot, unsigned* count) {
    __syncthreads();
    if (threadIdx.x) return;
    __threadfence();
    if (atomicAdd(&slot->finished, 1u) != gridDim.x - 1) return;
    slot->finished = 0;
    slot->flag = 0;
    *static_cast<volatile unsigned*>(count) = ++slot->rescues;
    __threadfence_system();
}

}  // namespace fmm
